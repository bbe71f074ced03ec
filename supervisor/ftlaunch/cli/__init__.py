"""The commands `ftlaunch` and `ftctl`: options in, text and exit codes out. Nothing here decides about a job."""
