"""Checkpoint files: layout, writing, verifying and retention. No module here knows about ranks' processes or torch."""
