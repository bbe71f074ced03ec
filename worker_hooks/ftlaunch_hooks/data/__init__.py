"""Resumable sampling. Nothing here knows about snapshots or checkpoints."""
