"""The shapes of the docs' drawings, as SVG text. All functions are pure; lengths are in pixels."""

from __future__ import annotations

from html import escape

FONT = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK = "#1f2933"
FAINT = "#52606d"
PAPER = "#ffffff"
LINE = "#9aa5b1"


def page(width: int, height: int, title: str, shapes: list[str]) -> str:
    """Return a whole drawing, on white paper so that it can be read on a dark page, too."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            *shapes,
            "</svg>",
            "",
        ]
    )


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = LINE) -> str:
    """Return a box with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{stroke}"/>'


def words(x: float, y: float, text: str, size: float = 12, *, bold: bool = False, ink: str = INK) -> str:
    """Return a line of text; (x, y) is the left end of its base line."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{ink}"{weight}>{escape(text)}</text>'


def arrow(path: str, colour: str, *, faint: bool = False) -> str:
    """Return a line along `path` with a head at its end; the drawing must define the head with `heads`."""
    opacity = ' opacity="0.45"' if faint else ""
    head = f"url(#head{colour[1:]})"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.4"{opacity} marker-end="{head}"/>'


def heads(colours: list[str]) -> str:
    """Return the definitions of the arrow heads of some colours."""
    return "<defs>" + "".join(
        f'<marker id="head{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{colour}"/></marker>'
        for colour in colours
    ) + "</defs>"  # fmt: skip
