"""Parses durations as people write them (`90s`, `1h30m`, `500ms`, `1w`) to seconds, and formats them. Pure."""

from __future__ import annotations

import re

_UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}  # milliseconds
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PARTS = re.compile(
    rf"(?=\S)(?:(?P<w>{_NUMBER})w)?\s*(?:(?P<d>{_NUMBER})d)?\s*(?:(?P<h>{_NUMBER})h)?\s*(?:(?P<m>{_NUMBER})m(?!s))?"
    rf"\s*(?:(?P<s>{_NUMBER})s)?\s*(?:(?P<ms>{_NUMBER})ms)?",
    re.ASCII,
)

# On some systems, longer waits overflow the clocks of poll and timerfd. Nobody means such a duration anyway.
LONGEST = 3650 * 86400.0
"""the longest duration that is accepted, in seconds (ten years)"""


def parse_duration(text: str) -> float:
    """Return the seconds that `text` means.

    Args:
        text: numbers with the units w, d, h, m, s, ms in this order, or a plain number of seconds.

    Raises:
        ValueError: `text` is not a duration, or a duration of more than ten years.
    """
    text = text.strip()
    if re.fullmatch(_NUMBER, text, re.ASCII):
        seconds = float(text)
    else:
        match = _PARTS.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a duration")
        parts = {unit: number for unit, number in match.groupdict().items() if number is not None}
        seconds = _total(parts)
    if seconds > LONGEST:
        raise ValueError(f"{text!r} is more than ten years")
    return seconds


def _total(parts: dict[str, str]) -> float:
    """Add up `parts` exactly and return seconds, rounded once: 9 * 0.001 is not the float nearest to 0.009.

    The sum is computed in whole numbers, because importing Python's `decimal` would cost every supervisor 0.3 MiB.

    Args:
        parts: decimal numbers by unit.
    """
    places = max(len(number.partition(".")[2]) for number in parts.values())
    total = 0
    for unit, number in parts.items():
        whole, _, fraction = number.partition(".")
        total += int(whole + fraction.ljust(places, "0")) * _UNITS[unit]
    return float(total / (1000 * 10**places))


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads back as `seconds`, such as `1h30m` or `500ms`."""
    if seconds != int(seconds):
        milliseconds = round(seconds * 1000)
        if milliseconds / 1000 == seconds and seconds < 1:
            return f"{milliseconds}ms"
        return f"{_without_exponent(seconds)}s"
    rest = int(seconds)
    text = ""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, _UNITS[unit] // 1000)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _without_exponent(seconds: float) -> str:
    digits, _, exponent = repr(seconds).partition("e-")
    if not exponent:
        return digits
    # Formatting with a fixed number of decimals may round to other digits, which would be read back as another float.
    return "0." + "0" * (int(exponent) - 1) + digits.replace(".", "")
