"""What is done with the logs of ranks while they run: marks of when they were how long. Nothing here reads a line."""
