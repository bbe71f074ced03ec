"""Which nodes a job has, which place each one takes, and when lost nodes are surely dead. Nothing here is sent."""
