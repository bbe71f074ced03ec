"""What a rank's process does when the hooks are imported, and its signals. No training state."""
