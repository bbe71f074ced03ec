"""Checks whether this machine is fit for a job, for `ftctl check` and `--check`. Nothing here changes the machine."""
