"""Sizes of files: the parser of `log_max_size`."""

from __future__ import annotations

from ftlaunch.common.rates import parse_size
from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.parsers import text

_LEAST = 1_000_000


def log_size(raw: object) -> int | None:
    """Bytes, a million at least: diagnosis reads the end of a log; None for `off`."""
    if raw == "off":
        return None
    try:
        size = int(parse_size(text(raw)))
    except ValueError:
        raise RefusedError from None
    if size < _LEAST:
        raise RefusedError
    return size
