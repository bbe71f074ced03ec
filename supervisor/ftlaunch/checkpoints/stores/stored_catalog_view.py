"""Formats the checkpoints of a store as `ftctl checkpoints` prints them. Pure: results of `stored_catalog.py` in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ftlaunch.checkpoints.stores.index import Index
from ftlaunch.checkpoints.stores.stored_catalog import StoredEntry, StoredPruned
from ftlaunch.common.formatting import counted, size, table

_VERIFIED = {None: "not read", True: "yes", False: "no"}


def list_lines(where: str, index: Index, entries: Sequence[StoredEntry]) -> Iterator[str]:
    """Yield whose the store is, a row for each checkpoint, and what is wrong with some.

    Args:
        where: the address of the store.
        index: its index.
        entries: its checkpoints, in the order of the rows.
    """
    yield f"{where}: job {index.job}, last kept by {index.owner}"
    if not entries:
        yield "there is no checkpoint in it"
        return
    rows = [("step", "size", "files", "state", "verified", "health")]
    rows += [
        (
            str(entry.step),
            size(entry.bytes),
            str(entry.files),
            entry.state,
            "-" if entry.state == "aside" else _VERIFIED[entry.verified],
            entry.health,
        )
        for entry in entries
    ]
    yield from table(rows, left=(3, 4, 5))
    for entry in entries:
        if entry.problem is not None:
            yield f"step {entry.step} is damaged: {entry.problem}"
        elif entry.state == "aside":
            yield f"step {entry.step} was put aside as {entry.name}: no resume takes it, and nothing deletes it"


def pruned_lines(done: StoredPruned, kept: Sequence[StoredEntry]) -> Iterator[str]:
    """Yield what `prune` has deleted, and which checkpoints are left.

    Args:
        done: what was deleted.
        kept: the entries of the store afterwards.
    """
    for step, count in done.deleted:
        yield f"deleted step {step} ({size(count)})"
    if done.cleared:
        yield f"deleted {counted(done.cleared, 'object')} that interrupted uploads had left"
    yield from done.stayed
    if not done.deleted and not done.cleared:
        yield "nothing to delete"
    steps = [str(entry.step) for entry in kept if entry.state != "aside"]
    yield f"kept: {', '.join(steps) or 'nothing'}"
