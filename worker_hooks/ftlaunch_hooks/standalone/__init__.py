"""Coordinates the ranks of a job that has no supervisor. Nothing here runs under a supervisor."""
