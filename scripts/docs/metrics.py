"""Renders the table of metrics from the exporter's catalogue."""

from __future__ import annotations

from ftlaunch.views.metrics.catalogue import ROWS


def table() -> str:
    """Return all metrics as a Markdown table."""
    lines = ["| metric | kind | what it says | labels |", "| --- | --- | --- | --- |"]
    for row in ROWS:
        labels = ", ".join(f"`{label}`" for label in row.labels) + (f": {row.values}" if row.values else "")
        lines.append(f"| `{row.name}` | {row.kind} | {row.says} | {labels} |")
    return "\n".join(lines)
