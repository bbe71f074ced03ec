"""Connect the ranks of a job by MindSpore's dynamic cluster."""
