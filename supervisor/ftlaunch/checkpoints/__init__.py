"""Decides which step is saved when, and where an attempt resumes. The format of the files belongs to the contract."""
