"""What the ranks of the jobs run in which calls are made to fail."""
