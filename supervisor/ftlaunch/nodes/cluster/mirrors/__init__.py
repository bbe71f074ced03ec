"""Ranks and pages of other machines, mirrored at the head. Nothing here knows connections."""
