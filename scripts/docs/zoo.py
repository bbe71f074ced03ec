"""Renders the shapes of training of tests/zoo as Markdown: what each is, and what is promised.

The scripts are only read.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from house import ROOT

SHAPES = ROOT / "tests/zoo/shapes"


class TrainingShape(NamedTuple):
    """One script of the zoo."""

    name: str
    what: str
    promise: str  # Exact, Refused or Said
    words: str  # why the shape is exact; else words of the refusing sentence or of the line


def shapes() -> Iterator[TrainingShape]:
    """Yield all shapes by name; kit.py is shared by them. Raises ValueError for a docstring without a promise."""
    for path in sorted(SHAPES.glob("*.py")):
        if path.stem != "kit":
            yield _read(path)


def _read(path: Path) -> TrainingShape:
    what, _, last = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").rpartition("\n\n")
    promise, _, words = last.partition(":")
    if not what or promise.strip(".") not in ("Exact", "Refused", "Said"):
        raise ValueError(f"cannot read {path.name}: its docstring must end with Exact, Refused or Said")
    return TrainingShape(path.stem, " ".join(what.split()), promise.strip("."), " ".join(words.split()).rstrip("."))


def table() -> str:
    """Return the number of shapes, and a table with a row for each, whose name leads to the script."""
    promises = Counter(shape.promise for shape in shapes())
    counts = f"{promises['Exact']} exact, {promises['Refused']} refused, {promises['Said']} said"
    lines = [f"{promises.total()} shapes: {counts}.", "", "| shape | what it is | promise |", "| --- | --- | --- |"]
    for shape in shapes():
        link = f"[{shape.name}](../../{(SHAPES / shape.name).relative_to(ROOT).as_posix()}.py)"
        lines.append(f"| {link} | {shape.what} | {_promise(shape)} |".replace("\n", " "))
    return "\n".join(lines)


def _promise(shape: TrainingShape) -> str:
    if not shape.words:
        return shape.promise.lower()
    words = shape.words if shape.promise == "Exact" else f'"{shape.words}"'
    return f"{shape.promise.lower()}: {words}"
