"""Checkpoint files: their layout, writing, verifying, keeping. Nothing here knows of ranks or of torch."""
