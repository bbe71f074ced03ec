"""Parsers of values that are mappings: rules for failures, and whom to tell."""
