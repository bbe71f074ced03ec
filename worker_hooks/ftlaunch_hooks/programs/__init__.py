"""Holds programs that run as files, in a Python that may lack the hooks. They import the standard library and torch
only, nothing of ours, and load each other by path.
"""
