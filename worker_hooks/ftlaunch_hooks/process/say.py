"""A line in the rank's log."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """A line in the rank's log."""
    sys.stderr.write(f"ftlaunch: {text}\n")
    sys.stderr.flush()
