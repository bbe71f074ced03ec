"""The ways in which notices can be delivered, one module each. Nothing here starts a process."""
