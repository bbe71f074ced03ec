"""The rows of `ftctl jobs`, and how they fit on a terminal. None of them commands a job."""
