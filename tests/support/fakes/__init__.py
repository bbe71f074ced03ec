"""What the engine meets in fast tests instead of processes and time."""
