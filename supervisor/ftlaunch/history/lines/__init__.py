"""Interprets lines of a journal in the same way for all readers. Pure: nothing here opens a file."""
