"""The table of all settings of a job, in parts, with their help. Nothing here reads or resolves a value."""
