"""Parsers of values with a structure: fault rules, notify targets, metrics and traces, hosts, sizes."""
