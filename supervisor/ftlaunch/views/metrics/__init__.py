"""Metrics of a job, told to Prometheus by a process of its own that reads for itself. Nothing here judges."""
