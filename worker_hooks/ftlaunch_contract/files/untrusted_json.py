"""JSON that nobody vouches for: read with limits, and checked before it is used. Standard library only.

Whatever is wrong with it is a ValueError whose message is part of a sentence.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NoReturn

HEX = re.compile(r"[0-9a-f]{32}")


def parse(data: bytes) -> Any:
    """The value of JSON. Raises ValueError for what is not JSON, and for what a reader could take for another
    value: a key that stands twice, NaN, nesting beyond what can be followed.
    """
    try:
        return json.loads(data, object_pairs_hook=_unambiguous, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in it")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


# --- kinds of values --------------------------------------------------------------------------------------


def whole(value: object, what: str, least: int = 0) -> int:
    """A whole number from `least` that a file system could count; true and 1.0 are none. Raises ValueError."""
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{what} is not a whole number from {least}")
    return value


def extents(value: object, what: str) -> tuple[int, ...]:
    """A list of whole numbers, as a tuple. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    return tuple(whole(extent, what) for extent in value)


def text(value: object, what: str) -> str:
    """Raises ValueError unless it is text."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is not text")
    return value


def mapping(value: object, what: str) -> dict[str, Any]:
    """Raises ValueError unless it is an object."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def plain_name(name: str) -> str:
    """Raises ValueError unless `name` names a file in the directory itself, and nothing else."""
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        length = 0
    if not 0 < length <= 255 or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name[:80]!a} is not the plain name of a file")
    return name
