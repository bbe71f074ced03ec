"""Values of requests of other copiers, checked before they are used. Pure.

Whatever is wrong is a ValueError whose message is part of a sentence.
"""

from __future__ import annotations

from typing import Any

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.untrusted_json import HEX, text, whole

MOST_RANKS = 1 << 20
_LONGEST_LINEAGE = 256


def lineage_of(message: dict[str, Any]) -> str:
    """The lineage that a message names."""
    found = text(message.get("lineage"), "`lineage`")
    if not 0 < len(found) <= _LONGEST_LINEAGE or not found.isprintable():
        raise ValueError("`lineage` is no lineage")
    return found


def rank_of(value: object) -> int:
    """A rank's number: it becomes part of a path."""
    rank = whole(value, "a rank")
    if rank >= MOST_RANKS:
        raise ValueError(f"{rank} is no rank")
    return rank


def group_of(value: object) -> str:
    """One of the groups of tensors."""
    if value not in layout.GROUPS:
        raise ValueError("a group of tensors is not known")
    return str(value)


def digest_of(value: object, what: str) -> str:
    """A digest of 128 bits."""
    found = text(value, what)
    if not HEX.fullmatch(found):
        raise ValueError(f"{what} is no digest")
    return found


def size_of(value: object, most: int, what: str) -> int:
    """A number of bytes."""
    size = whole(value, what)
    if size > most:
        raise ValueError(f"{what} is {size}, {most} are allowed")
    return size


def items_of(value: object, most: int, what: str) -> list[Any]:
    """A list of bounded length."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{what} is not a list of at most {most}")
    return value
