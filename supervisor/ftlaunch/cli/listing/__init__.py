"""The rows of `ftctl jobs`, and their layout on a terminal. Nothing here changes a job."""
