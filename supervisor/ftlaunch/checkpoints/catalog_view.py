"""Formats checkpoints as `ftctl checkpoints` prints them. Pure: results of `checkpoints/catalog.py` in, lines out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ftlaunch.checkpoints.catalog import CatalogEntry, Pruned
from ftlaunch.common.formatting import duration, size, table

_WORDS = {None: "not read", True: "yes", False: "no"}


def list_lines(entries: Sequence[CatalogEntry], age: Callable[[CatalogEntry], float | None]) -> Iterator[str]:
    """Yield a table with a row for each checkpoint, and below the table what is wrong with some.

    Args:
        entries: the checkpoints, in the order of the rows.
        age: returns the seconds since a checkpoint was saved, or None if this is unknown.
    """
    rows = [("step", "why", "size", "ranks", "state", "verified", "health", "age")]
    for entry in entries:
        seconds = age(entry)
        rows.append(
            (
                str(entry.step),
                entry.why or "-",
                "-" if entry.bytes is None else size(entry.bytes),
                "-" if entry.ranks is None else str(entry.ranks),
                entry.state,
                _WORDS[entry.verified] if entry.state in ("complete", "damaged") else "-",
                entry.health or "-",
                "-" if seconds is None else duration(seconds),
            )
        )
    yield from table(rows, left=(1, 4, 5, 6))
    for entry in entries:
        if entry.health == "abnormal":
            yield f"{entry.path.name} is abnormal: {entry.health_why}"
        if entry.state == "foreign":
            yield str(entry.problem)
        elif entry.problem is not None:
            yield f"{entry.path.name} is {entry.state}: {entry.problem}"


def verified_line(entry: CatalogEntry, seconds: float) -> str:
    """Return the line about one verified checkpoint.

    Args:
        entry: the checkpoint.
        seconds: how long the verification took.
    """
    if entry.state == "foreign":
        return f"step {entry.step}: not looked at: {entry.problem}"
    if entry.problem is not None:
        return f"step {entry.step}: damaged: {entry.problem}"
    return f"step {entry.step}: every byte is right ({size(entry.bytes or 0)} in {duration(seconds)})"


def pruned_lines(done: Pruned, kept: Sequence[CatalogEntry]) -> Iterator[str]:
    """Yield what `prune` has deleted and which checkpoints are left.

    Args:
        done: what was deleted.
        kept: the entries of the directory afterwards.
    """
    for step, count in done.deleted:
        yield f"deleted step {step} ({size(count)})"
    for step in done.cleared:
        yield f"deleted what an interrupted save of step {step} had left"
    yield from done.stayed
    if not done.deleted and not done.cleared:
        yield "nothing to delete"
    elif done.journal is None:
        yield "no journal has that: no run is known that saves here"
    steps = [str(entry.step) for entry in kept if entry.state == "complete"]
    yield f"kept: {', '.join(steps) or 'nothing'}"


def show_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the contents of one checkpoint, with a row for every tensor.

    Args:
        found: the contents, from `catalog.shown`.
    """
    ranks = found["ranks"]
    yield f"step {found['step']} in {found['path']}"
    yield f"  saved:    {found['created']}, why: {found['why']}, by {ranks} {'rank' if ranks == 1 else 'ranks'}"
    yield f"  samples:  {found['consumed_samples']} consumed"
    health = found["health"]
    yield f"  health:   {health['status']}{': ' + health['why'] if health['why'] else ''}"
    yield f"  versions: {', '.join(f'{name} {value}' for name, value in (found['versions'] or {}).items())}"
    yield f"  objects:  {', '.join(f'{name} ({kind})' for name, kind in found['objects'].items())}"
    yield f"  files:    {len(found['files'])}, {size(sum(found['files'].values()))}"
    yield ""
    rows = [("tensor", "dtype", "shape", "elements", "shards", "in")]
    for key, tensor in sorted(found["tensors"].items()):
        shape = tensor["shape"]
        files = sorted({chunk["file"] for chunk in tensor["chunks"]})
        inside = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        extents = "x".join(map(str, shape)) or "scalar"
        rows.append((key, tensor["dtype"], extents, str(math.prod(shape)), str(len(tensor["chunks"])), inside))
    yield from table(rows, left=(0, 1, 5))
