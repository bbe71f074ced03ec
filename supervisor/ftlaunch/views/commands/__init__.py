"""Commands of `ftctl` that show jobs."""
