"""Expands Slurm's compressed lists of hosts, such as `n[001-003,7],gpu-a[1-2]-x,login`. Pure, and bounded."""

from __future__ import annotations

import re
from itertools import product
from math import prod

MOST_HOSTS = 65_536
_MOST_TEXT = 1 << 20  # characters of a list
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+", re.ASCII)
_PIECE = re.compile(r"\[([0-9,-]+)\]|([^\[]+)", re.ASCII)
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in its order.

    Raises:
        ValueError: the text is no list of hosts, or has more than MOST_HOSTS.
    """
    if len(text) > _MOST_TEXT:
        raise ValueError(f"a list of hosts of {len(text)} characters is too long")
    hosts: list[str] = []
    for item in _items(text):
        choices = _choices(item, MOST_HOSTS - len(hosts))
        hosts.extend("".join(parts) for parts in product(*choices))
    return tuple(hosts)


def _items(text: str) -> list[str]:
    """Split a list at the commas outside of brackets. Raises ValueError if a part is no host or range of hosts."""
    items = re.split(r",(?![^\[\]]*\])", text)
    for item in items:
        if not _ITEM.fullmatch(item):
            raise ValueError(f"{item[:60]!r} is no host or range of hosts")
    return items


def _choices(item: str, most: int) -> list[list[str]]:
    """Return for each piece of an item the texts that are possible there; the host names are their product.

    Args:
        item: a host name with ranges in brackets.
        most: most host names that the item may make.

    Raises:
        ValueError: the item makes too many names, or a range is no range.
    """
    pieces = [_spans(found[1]) if found[1] else found[2] for found in _PIECE.finditer(item)]
    sizes = [1 if isinstance(piece, str) else sum(last - first + 1 for first, last, _ in piece) for piece in pieces]
    if prod(sizes) > most:  # checked before the names are made
        raise ValueError(f"{item[:60]!r} makes more than {MOST_HOSTS} hosts")
    return [[piece] if isinstance(piece, str) else _numbers(piece) for piece in pieces]


def _numbers(spans: list[tuple[int, int, int]]) -> list[str]:
    """Write out the numbers of ranges, padded with zeros."""
    return [f"{number:0{width}}" for first, last, width in spans for number in range(first, last + 1)]


def _spans(text: str) -> list[tuple[int, int, int]]:
    """Return first number, last number and least width of each range in brackets. Raises ValueError."""
    spans = []
    for part in text.split(","):
        found = _NUMBERS.fullmatch(part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"[{part[:60]}] is no range of numbers")
        spans.append((int(found[1]), int(found[2] or found[1]), len(found[1])))
    return spans
