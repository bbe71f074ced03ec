"""Rates as people write them (`200MB/s`, `1.5GiB/s`) to bytes a second and back."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}  # fmt: skip
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|[KkMGT]|[KMGT]i)B(?:/s|ps)?", re.ASCII)


def parse_rate(text: str) -> float:
    """Bytes a second in `text`: a number, then B, KB, MB, GB, TB (thousands) or KiB, MiB, GiB, TiB, then /s or not.

    Raises ValueError where it is not a rate, or is less than a byte a second: a plain number might mean anything.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rate")
    rate = float(match[1]) * _UNITS["K" if match[2] == "k" else match[2]]
    if not 1 <= rate < 1e18:
        raise ValueError(f"{text!r} is less than a byte a second, or more than any storage takes")
    return rate


def format_rate(rate: float) -> str:
    """A text that `parse_rate` reads back as `rate`, such as `200MB/s`."""
    unit = max((unit for unit, size in _UNITS.items() if rate % size == 0), key=lambda unit: _UNITS[unit], default=None)
    return f"{rate!r}B/s" if unit is None else f"{int(rate) // _UNITS[unit]}{unit}B/s"
