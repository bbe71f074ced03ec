"""Pictures of screens for the docs, which must show without a network."""

from __future__ import annotations

import re

_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)
_FAMILY = re.compile(r"font-family:\s*[^;}]+")
# Matches addresses that a viewer would load; names of XML namespaces are never loaded.
_LOADS = re.compile(
    r"""(?:url\(|@import|\b(?:xlink:)?href\s*=|\bsrc\s*=)\s*["'(]*\s*(?:https?:)?//[^"')\s]+""", re.IGNORECASE
)


def offline(svg: str) -> str:
    """Return Textual's picture of a screen without the fonts that a viewer would load; any monospaced font will do."""
    return _FAMILY.sub("font-family: monospace", _FONT_FACE.sub("", svg))


def loaded_by(svg: str) -> list[str]:
    """Return the addresses from which a picture would load something."""
    return _LOADS.findall(svg)
