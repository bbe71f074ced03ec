"""Snapshots in this node's memory: of its own ranks, and copies of other nodes' ranks. Nothing here is sent."""
