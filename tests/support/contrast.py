"""How readable text on a terminal's screen is: the contrast of its colours by WCAG 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_DEFAULT = {"foreground": "e5e5e5", "background": "000000"}  # xterm's
# The 16 colours as xterm shows them, by pyte's names.
_NAMED = {
    "black": "000000", "red": "cd0000", "green": "00cd00", "brown": "cdcd00", "blue": "0000ee", "magenta": "cd00cd",
    "cyan": "00cdcd", "white": "e5e5e5", "brightblack": "7f7f7f", "brightred": "ff0000", "brightgreen": "00ff00",
    "brightbrown": "ffff00", "brightblue": "5c5cff", "brightmagenta": "ff00ff", "brightcyan": "00ffff",
    "brightwhite": "ffffff",
}  # fmt: skip


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _rgb(colour: str, ground: str) -> str:
    return _DEFAULT[ground] if colour == "default" else _NAMED.get(colour, colour)


def contrast(cell: Any) -> float:
    """Return the contrast of a cell of pyte's: 1 is invisible, 21 is black on white."""
    first = _luminance(_rgb(cell.fg, "foreground"))
    second = _luminance(_rgb(cell.bg, "background"))
    return (max(first, second) + 0.05) / (min(first, second) + 0.05)


def grey(cells: Sequence[Any]) -> bool:
    """Return whether all cells are grey, black or white."""
    colours = [_rgb(cell.fg, "foreground") for cell in cells] + [_rgb(cell.bg, "background") for cell in cells]
    return all(colour[:2] == colour[2:4] == colour[4:] for colour in colours)
