"""Shows a running job for `ftctl top`, read from outside. Nothing here commands a job."""
