"""Checks values of other copiers' messages before they are used. Pure.

Each function returns the checked value. A wrong value is a ValueError whose message is part of a sentence; `what` names
the value there.
"""

from __future__ import annotations

from typing import Any

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.untrusted_json import HEX, text, whole

MOST_RANKS = 1 << 20
_LONGEST_LINEAGE = 256


def lineage_of(message: dict[str, Any]) -> str:
    """Return the lineage that a message names."""
    found = text(message.get("lineage"), "`lineage`")
    if not 0 < len(found) <= _LONGEST_LINEAGE or not found.isprintable():
        raise ValueError("`lineage` is no lineage")
    return found


def rank_of(value: object) -> int:
    """Return a rank, which will be part of a path."""
    rank = whole(value, "a rank")
    if rank >= MOST_RANKS:
        raise ValueError(f"{rank} is no rank")
    return rank


def group_of(value: object) -> str:
    """Return one of the groups of tensors."""
    if value not in layout.GROUPS:
        raise ValueError("a group of tensors is not known")
    return str(value)


def digest_of(value: object, what: str) -> str:
    """Return a digest of 128 bits, in hexadecimal digits."""
    found = text(value, what)
    if not HEX.fullmatch(found):
        raise ValueError(f"{what} is no digest")
    return found


def size_of(value: object, most: int, what: str) -> int:
    """Return a whole number of at most `most`."""
    size = whole(value, what)
    if size > most:
        raise ValueError(f"{what} is {size}, {most} are allowed")
    return size


def items_of(value: object, most: int, what: str) -> list[Any]:
    """Return a list of at most `most` items."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{what} is not a list of at most {most}")
    return value
