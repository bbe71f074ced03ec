"""Writes lines to the rank's log."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write `text` as a line to the rank's log (standard error)."""
    sys.stderr.write(f"ftlaunch: {text}\n")
    sys.stderr.flush()
