"""`ftctl top`: a running job as it is at this moment, read from outside. Nothing here commands a job."""
