"""Copies of snapshots on other nodes: one process on each node, the copier, sends, keeps and fetches them.

Nothing here chooses a step to resume from.
"""
