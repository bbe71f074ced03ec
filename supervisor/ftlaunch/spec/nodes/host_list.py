"""Slurm's compressed lists of hosts, such as `n[001-003,7],gpu-a[1-2]-x,login`. Pure, and bounded."""

from __future__ import annotations

import re
from itertools import product
from math import prod

MOST_HOSTS = 65_536
_MOST_TEXT = 1 << 20
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+", re.ASCII)
_PIECE = re.compile(r"\[([0-9,-]+)\]|([^\[]+)", re.ASCII)
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a list, in its order. Raises ValueError where it is none, or has more than MOST_HOSTS."""
    if len(text) > _MOST_TEXT:
        raise ValueError(f"a list of hosts of {len(text)} characters is too long")
    hosts: list[str] = []
    for item in _items(text):
        choices = _choices(item, MOST_HOSTS - len(hosts))
        hosts.extend("".join(parts) for parts in product(*choices))
    return tuple(hosts)


def _items(text: str) -> list[str]:
    """The parts between commas that stand in no brackets."""
    items = re.split(r",(?![^\[\]]*\])", text)
    for item in items:
        if not _ITEM.fullmatch(item):
            raise ValueError(f"{item[:60]!r} is no host or range of hosts")
    return items


def _choices(item: str, most: int) -> list[list[str]]:
    """What may stand at each place of a name, `most` names in all at most."""
    spans = [_spans(found[1]) if found[1] else found[2] for found in _PIECE.finditer(item)]
    sizes = [1 if isinstance(span, str) else sum(last - first + 1 for first, last, _ in span) for span in spans]
    if prod(sizes) > most:
        raise ValueError(f"{item[:60]!r} makes more than {MOST_HOSTS} hosts")
    return [
        [span] if isinstance(span, str)
        else [f"{number:0{width}}" for first, last, width in span for number in range(first, last + 1)]
        for span in spans
    ]  # fmt: skip


def _spans(text: str) -> list[tuple[int, int, int]]:
    """First, last and least width of the numbers of each range in brackets."""
    spans = []
    for part in text.split(","):
        found = _NUMBERS.fullmatch(part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"[{part[:60]}] is no range of numbers")
        spans.append((int(found[1]), int(found[2] or found[1]), len(found[1])))
    return spans
