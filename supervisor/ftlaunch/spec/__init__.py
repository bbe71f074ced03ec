"""Flags, YAML, environment and defaults to one frozen JobSpec. Nothing here starts or changes anything."""
