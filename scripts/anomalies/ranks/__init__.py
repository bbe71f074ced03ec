"""The scripts of ranks in jobs in which calls are made to fail."""
