"""Batches of loaders: passes over them, what they draw from, and whether they are the same again."""
