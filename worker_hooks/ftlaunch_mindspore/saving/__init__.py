"""Read and write the snapshots and checkpoints of one rank, as NumPy arrays. Nothing here imports MindSpore."""
