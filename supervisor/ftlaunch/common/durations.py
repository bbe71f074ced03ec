"""Durations as people write them (`90s`, `1h30m`, `500ms`, `1w`) to seconds and back."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {
    "w": Decimal(604800), "d": Decimal(86400), "h": Decimal(3600), "m": Decimal(60), "s": Decimal(1),
    "ms": Decimal("0.001"),
}  # fmt: skip
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PARTS = re.compile(
    rf"(?=\S)(?:(?P<w>{_NUMBER})w)?\s*(?:(?P<d>{_NUMBER})d)?\s*(?:(?P<h>{_NUMBER})h)?\s*(?:(?P<m>{_NUMBER})m(?!s))?"
    rf"\s*(?:(?P<s>{_NUMBER})s)?\s*(?:(?P<ms>{_NUMBER})ms)?",
    re.ASCII,
)

# Waits longer than this overflow the clocks of poll and timerfd on some systems, and no one means them.
LONGEST = 3650 * 86400.0


def parse_duration(text: str) -> float:
    """Seconds in `text`: parts in falling order of w, d, h, m, s, ms, or a plain number of seconds.

    Raises ValueError where it is not a duration, or is one of more than ten years.
    """
    text = text.strip()
    if re.fullmatch(_NUMBER, text, re.ASCII):
        seconds = float(text)
    else:
        match = _PARTS.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a duration")
        parts = {unit: number for unit, number in match.groupdict().items() if number is not None}
        # added up exactly, and rounded once: 9 * 0.001 is not the float nearest to 0.009
        seconds = float(sum(Decimal(number) * _UNITS[unit] for unit, number in parts.items()))
    if seconds > LONGEST:
        raise ValueError(f"{text!r} is more than ten years")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back as `seconds`, such as `1h30m` or `500ms`."""
    if seconds != int(seconds):
        thousands = round(seconds * 1000)
        if thousands / 1000 == seconds and seconds < 1:
            return f"{thousands}ms"
        return f"{Decimal(repr(seconds)):f}s"
    rest, text = int(seconds), ""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_UNITS[unit]))
        text += f"{count}{unit}" if count else ""
    return text or "0s"
