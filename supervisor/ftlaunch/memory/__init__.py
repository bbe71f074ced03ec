"""Pages, snapshots and stacks in /dev/shm, and which step can be restored whole. Nothing here reads checkpoints."""
