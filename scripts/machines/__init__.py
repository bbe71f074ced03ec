"""Several machines on one: what tests, the demo and the benchmark of jobs of several nodes have in common."""
