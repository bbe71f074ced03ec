"""Snapshots in this node's memory: those of its own ranks, and copies for other nodes. Nothing here is sent."""
