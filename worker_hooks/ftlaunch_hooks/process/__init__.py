"""Prepares a rank's process at the import of the hooks, and handles its signals and its end. No training state."""
