"""A running job as it is at this moment, read from outside, for `ftctl top`. Nothing here commands a job."""
