"""Pictures of screens for the docs, which show without a network."""

from __future__ import annotations

import re

_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)
_FAMILY = re.compile(r"font-family:\s*[^;}]+")
# What a picture loads when it is shown; the names of XML's namespaces are no addresses.
_LOADS = re.compile(
    r"""(?:url\(|@import|\b(?:xlink:)?href\s*=|\bsrc\s*=)\s*["'(]*\s*(?:https?:)?//[^"')\s]+""", re.IGNORECASE
)


def offline(svg: str) -> str:
    """Textual's picture of a screen without the fonts that it would load: any monospaced font does."""
    return _FAMILY.sub("font-family: monospace", _FONT_FACE.sub("", svg))


def loaded_by(svg: str) -> list[str]:
    """The addresses that a picture loads something from."""
    return _LOADS.findall(svg)
