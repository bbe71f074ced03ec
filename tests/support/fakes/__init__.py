"""Fakes that fast tests give to the engine instead of processes, files and time."""
