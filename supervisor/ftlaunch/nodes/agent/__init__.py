"""A node's part of a job of several nodes: its ranks and helpers, as the head says. Nothing here judges a failure."""
