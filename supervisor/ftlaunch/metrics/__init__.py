"""Metrics and traces of a job, each told by a process of its own. Nothing here judges, and the supervisor feeds neither."""
