"""Reports what has happened, to the terminal, the journal and notices. Nothing here decides anything about the job."""
