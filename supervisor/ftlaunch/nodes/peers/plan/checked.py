"""Checks values of other copiers' messages before they are used. Pure.

A copier is the process of a node that sends copies of snapshots to other nodes, and fetches snapshots from there
(copier.py). A lineage is the name of an attempt, RUN:ATTEMPT/NODES; steps of two lineages are never mixed. The modules
of `peers` call this when they read a message of another node's copier, or the note on disk beside a kept copy.

Each function returns the checked value. In all functions `what` names the value in the message of the ValueError, which
is a part of a sentence.
"""

from __future__ import annotations

from typing import Any

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.untrusted_json import HEX, text, whole

MOST_RANKS = 1 << 20
"""a rank is less than this number"""
_LONGEST_LINEAGE = 256
"""characters"""


def lineage_of(message: dict[str, Any]) -> str:
    """Return the field `lineage` of a message: 1 to 256 printable characters. Raises ValueError."""
    found = text(message.get("lineage"), "`lineage`")
    if not 0 < len(found) <= _LONGEST_LINEAGE or not found.isprintable():
        raise ValueError("`lineage` is no lineage")
    return found


def rank_of(value: object) -> int:
    """Return a rank, from 0 to MOST_RANKS - 1, which will be part of a path. Raises ValueError."""
    rank = whole(value, "a rank")
    if rank >= MOST_RANKS:
        raise ValueError(f"{rank} is no rank")
    return rank


def group_of(value: object) -> str:
    """Return the name of a group of tensors: one of layout.GROUPS. Raises ValueError."""
    if value not in layout.GROUPS:
        raise ValueError("a group of tensors is not known")
    return str(value)


def digest_of(value: object, what: str) -> str:
    """Return a digest of 128 bits: 32 hexadecimal digits in lower case. Raises ValueError."""
    found = text(value, what)
    if not HEX.fullmatch(found):
        raise ValueError(f"{what} is no digest")
    return found


def whole_up_to(value: object, most: int, what: str) -> int:
    """Return a whole number from 0 to `most`: a size in bytes, or the number of a piece. Raises ValueError."""
    number = whole(value, what)
    if number > most:
        raise ValueError(f"{what} is {number}, {most} are allowed")
    return number


def items_of(value: object, most: int, what: str) -> list[Any]:
    """Return a list of 0 to `most` items, which are not checked. Raises ValueError."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{what} is not a list of at most {most}")
    return value
