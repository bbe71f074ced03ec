"""Copies of snapshots on other nodes: one process a node sends, keeps and fetches them. No step is chosen here."""
