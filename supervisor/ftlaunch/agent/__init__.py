"""A node's part of a job of several nodes: its ranks, saver and fork server, as the head says; and the start of the head. Nothing here judges a failure."""
