"""What schedulers say in the environment of a job: one file for each scheduler, and the table of them all."""
