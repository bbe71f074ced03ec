"""EasyCkpt's calls under its own names: a script changes where it imports them from, and nothing else."""
