"""Parses `log_max_size`. Pure."""

from __future__ import annotations

from ftlaunch.common.rates import parse_size
from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.parsers import text

_LEAST = 1_000_000  # bytes, as a diagnosis reads the end of a log


def log_size(raw: object) -> int | None:
    """Parse a size of a million bytes or more, and `off` to None. Raises RefusedError."""
    if raw == "off":
        return None
    try:
        size = int(parse_size(text(raw)))
    except ValueError:
        raise RefusedError from None
    if size < _LEAST:
        raise RefusedError
    return size
