"""Imported by the fork server beside torch."""
