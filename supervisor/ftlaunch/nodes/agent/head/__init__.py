"""The head of a job of several nodes: a process that agents start. It knows no rank of a machine, only nodes."""
