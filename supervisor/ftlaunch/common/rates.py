"""Parses rates (`200MB/s`) to bytes a second and sizes (`1.5GiB`) to bytes, and formats rates. Pure."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|[KkMGT]|[KMGT]i)B", re.ASCII)
_A_SECOND = re.compile(r"/s\Z|(?<=B)ps\Z")


def parse_rate(text: str) -> float:
    """Return the bytes a second that `text` means.

    Args:
        text: a number, then B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB, then optionally /s or ps. A
            plain number is refused, because its unit would be a guess.

    Raises:
        ValueError: `text` is not a rate, or is less than a byte a second, or 1e18 bytes a second or more.
    """
    try:
        rate = _bytes(_A_SECOND.sub("", text.strip()))
    except ValueError:
        raise ValueError(f"{text!r} is not a rate") from None
    if not 1 <= rate < 1e18:
        raise ValueError(f"{text!r} is less than a byte a second, or more than any storage takes")
    return rate


def parse_size(text: str) -> float:
    """Return the bytes that `text` means.

    Args:
        text: a number, then B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB.

    Raises:
        ValueError: `text` is not a size, or is less than a byte, or 1e18 bytes or more.
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
    """Return the text that `parse_rate` reads back as `rate`, such as `200MB/s`."""
    whole_units = [unit for unit, size in _UNITS.items() if rate % size == 0]
    if not whole_units:
        return f"{rate!r}B/s"
    largest = max(whole_units, key=lambda unit: _UNITS[unit])
    return f"{int(rate) // _UNITS[largest]}{largest}B/s"
