"""Notes the lengths of running ranks' logs over time, and keeps the logs short. Nothing here reads a line of a log."""
