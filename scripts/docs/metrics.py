"""The table of metrics, from the catalogue of the exporter."""

from __future__ import annotations

from ftlaunch.views.metrics.catalogue import ROWS


def table() -> str:
    """All metrics, as Markdown."""
    lines = ["| metric | kind | what it says | labels |", "| --- | --- | --- | --- |"]
    for row in ROWS:
        labels = ", ".join(f"`{label}`" for label in row.labels) + (f": {row.values}" if row.values else "")
        lines.append(f"| `{row.name}` | {row.kind} | {row.says} | {labels} |")
    return "\n".join(lines)
