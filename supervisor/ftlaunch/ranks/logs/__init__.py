"""Logs of ranks that run: notes of how long each was when, and what is kept of them. Nothing here reads a line."""
