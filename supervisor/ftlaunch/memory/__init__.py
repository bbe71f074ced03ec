"""Pages, snapshots and stacks in /dev/shm, and which step can be had whole. Nothing here reads checkpoints."""
