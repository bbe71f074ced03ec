"""Reads JSON from sources that may be damaged or hostile, within limits, and checks the types of values.

Everything that is wrong is a ValueError whose message is a part of a sentence. In all functions `what` names the value
in that message. Pure; standard library only.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NoReturn

HEX = re.compile(r"[0-9a-f]{32}")


def parse(data: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, or different readers could see different values in it: a repeated key, NaN,
            nesting that is too deep to follow.
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
    """Return `value` as a whole number from `least` to 2^63 - 1; true and 1.0 are refused. Raises ValueError."""
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{what} is not a whole number from {least}")
    return value


def extents(value: object, what: str) -> tuple[int, ...]:
    """Return a list of whole numbers as a tuple. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    return tuple(whole(extent, what) for extent in value)


def text(value: object, what: str) -> str:
    """Return `value` as text. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is not text")
    return value


def mapping(value: object, what: str) -> dict[str, Any]:
    """Return `value` as a JSON object. Raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def mappings(value: object, what: str) -> list[dict[str, Any]]:
    """Return `value` as a list of JSON objects. Raises ValueError for anything else."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{what} is not a list of objects")
    return value


def plain_name(name: str) -> str:
    """Return `name` if a file directly in a directory can have it. Raises ValueError for a path, `.` and `..`."""
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        length = 0
    if not 0 < length <= 255 or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name[:80]!a} is not the plain name of a file")
    return name
