"""Turns flags, YAML, environment and defaults into one frozen JobSpec. Nothing here starts or changes anything."""
