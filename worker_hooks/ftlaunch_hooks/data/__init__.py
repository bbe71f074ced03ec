"""Resumable sampling. Nothing here knows of snapshots or checkpoints."""
