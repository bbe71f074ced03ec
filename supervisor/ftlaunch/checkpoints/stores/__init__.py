"""Checkpoint stores: places other than a directory, such as a bucket, in which committed checkpoints are kept."""
