"""Wraps Linux: processes, /proc, signals, sockets, the kernel log. Nothing here knows of jobs or checkpoints."""
