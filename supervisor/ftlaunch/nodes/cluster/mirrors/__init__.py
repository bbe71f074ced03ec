"""Ranks and pages of other machines, as they are known here. Nothing here knows of connections."""
