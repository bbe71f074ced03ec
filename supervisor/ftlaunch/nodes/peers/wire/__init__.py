"""Connections between copiers: authenticated messages, and bytes of files. Nothing here decides what is sent."""
