"""Passes over loaders of data: brought back to a batch, and compared. Nothing here knows of steps or snapshots."""
