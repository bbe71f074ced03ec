"""The head of a job of several nodes: a process of its own, started by an agent, that supervises nodes."""
