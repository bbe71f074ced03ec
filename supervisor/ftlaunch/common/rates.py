"""Rates and sizes as people write them (`200MB/s`, `1.5GiB`) to bytes a second, or bytes; rates also back."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|[KkMGT]|[KMGT]i)B", re.ASCII)
_A_SECOND = re.compile(r"/s\Z|(?<=B)ps\Z")


def parse_rate(text: str) -> float:
    """Bytes a second in `text`: a number, then B, KB, MB, GB, TB (thousands) or KiB, MiB, GiB, TiB, then /s or not.

    Raises ValueError where it is not a rate, or is less than a byte a second: a plain number might mean anything.
    """
    try:
        rate = _bytes(_A_SECOND.sub("", text.strip()))
    except ValueError:
        raise ValueError(f"{text!r} is not a rate") from None
    if not 1 <= rate < 1e18:
        raise ValueError(f"{text!r} is less than a byte a second, or more than any storage takes")
    return rate


def parse_size(text: str) -> float:
    """Bytes in `text`: a number, then B, KB, MB, GB, TB (thousands) or KiB, MiB, GiB, TiB.

    Raises ValueError where it is not a size, or is less than a byte.
    """
    size = _bytes(text.strip())
    if not 1 <= size < 1e18:
        raise ValueError(f"{text!r} is less than a byte, or more than any job has")
    return size


def _bytes(text: str) -> float:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return float(match[1]) * _UNITS["K" if match[2] == "k" else match[2]]


def format_rate(rate: float) -> str:
    """A text that `parse_rate` reads back as `rate`, such as `200MB/s`."""
    unit = max((unit for unit, size in _UNITS.items() if rate % size == 0), key=lambda unit: _UNITS[unit], default=None)
    return f"{rate!r}B/s" if unit is None else f"{int(rate) // _UNITS[unit]}{unit}B/s"
