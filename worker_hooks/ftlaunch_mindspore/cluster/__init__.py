"""The ranks of a job, as MindSpore's dynamic cluster has them."""
