"""Helpers for files: atomic writes, locks, checksums, untrusted JSON. Nothing here knows what a file means."""
