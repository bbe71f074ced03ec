"""Attached objects to tensors and JSON, and back. Nothing here writes files or knows when it is called."""
