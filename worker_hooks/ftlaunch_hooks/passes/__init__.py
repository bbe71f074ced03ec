"""Passes over data loaders: brought back to a batch, and compared. Nothing here knows about steps or snapshots."""
