"""Metrics and traces of a job, each told by a process of its own that reads for itself. Nothing here judges."""
