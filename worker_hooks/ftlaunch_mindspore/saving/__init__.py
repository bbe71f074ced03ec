"""Snapshots and checkpoints of one rank: arrays in files, and back. Nothing here knows MindSpore."""
