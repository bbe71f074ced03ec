"""Several machines on one, for the tests, the demo and the benchmark of jobs of several nodes."""
