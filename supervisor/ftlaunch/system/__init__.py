"""Linux: processes, /proc, signals, sockets, kernel log. Nothing here knows of jobs or checkpoints."""
