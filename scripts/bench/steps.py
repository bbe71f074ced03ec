"""Measures what a step costs with the hooks and their defaults, against the same step without them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tables import as_table
from trial import JOBS

SHAPES = (
    "a step of 1 ms", "a step of 5 ms", "a step of 50 ms", "frozen base of 256 MiB", "EMA of 32 MiB",
    "FSDP2, 400 parameters", "10,000 tensors",
)  # fmt: skip


def measure(home: Path, rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """Measure all shapes.

    Returns:
        For each shape a dictionary for each round: `step`, the seconds without the hooks; `first` and `then`, how many
        times as long a step takes with the hooks, in the first and the second half.
    """
    found: dict[str, list[dict[str, float]]] = {shape: [] for shape in SHAPES}
    for number in range(rounds):
        for shape in SHAPES:
            place = home / f"steps-{number}-{SHAPES.index(shape)}"
            place.mkdir()
            command = [sys.executable, "-m", "ftlaunch", "--nproc-per-node", "1", "--max-restarts", "0"]
            job = [str(JOBS / "step_costs.py"), shape, str(seconds), str(place / "found.json")]
            subprocess.run([*command, *job], cwd=place, check=True, capture_output=True)
            found[shape].append(json.loads((place / "found.json").read_text()))
    return found


def table(found: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return a Markdown table with a row for each shape."""
    rows = [["with the defaults", "step without hooks", "with hooks, the first half", "with hooks, the second half"]]
    for shape, rounds in found.items():
        cells = [shape, f"{1000 * median(figures['step'] for figures in rounds):.3g} ms"]
        for figure in ("first", "then"):
            ratios = [figures[figure] for figures in rounds]
            cells.append(f"{median(ratios):.3f} x ({min(ratios):.3f} to {max(ratios):.3f})")
        rows.append(cells)
    return as_table(rows)
