"""Finds, verifies, describes and deletes the checkpoints of a directory, for `ftctl checkpoints`.

Runs in the process of `ftctl`, beside a job that may be running. Only `pruned` changes anything, under the lock that
the savers of jobs hold, too. `checkpoints/catalog_view.py` turns the results into lines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import EVENTS, Journal, read_events
from ftlaunch.history.runs import CannotFind, Run, find, load, run_saving_to
from ftlaunch.reporting.events.checkpoints import CheckpointDeleted
from ftlaunch_contract.checkpoint import foreign, health_mark, layout, retention, verify
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files.dirlock import CHECKPOINT_LOCK, DirLock
from ftlaunch_contract.files.regular_file import read_regular
from ftlaunch_contract.progress import Advance, ignore

Watched = Callable[[str, int], AbstractContextManager[Advance]]
"""Makes a context manager for long work, from a description and the total of bytes; for showing progress.

The context gives a function that is called with the bytes done since the last call.
"""


def _unwatched(_doing: str, _total: int) -> AbstractContextManager[Advance]:
    return nullcontext(ignore)


@dataclass(frozen=True)
class CatalogEntry:
    """A checkpoint, or what lies in the place of a checkpoint."""

    step: int
    path: Path
    state: str
    """complete, damaged, interrupted (a save that was not committed), quarantined, or foreign (not ours)"""
    problem: str | None
    """what is wrong with the checkpoint, as words after "it is damaged:"; None: nothing is known to be wrong"""
    verified: bool | None = None
    """True: every byte matches its checksum; False: damaged, by sizes or by checksums; None: not checked"""
    why: str | None = None
    """the reason for the save"""
    ranks: int | None = None
    """number of ranks that have saved"""
    bytes: int | None = None
    """size of all files"""
    created: float | None = None
    """time of the save, in seconds since the epoch"""
    health: str | None = None
    """normal, abnormal or unknown: what was known of the losses when the checkpoint was committed"""
    health_why: str | None = None
    """the reason for `health`, as a sentence"""

    def data(self) -> dict[str, Any]:
        """Return the entry as `--json` prints it."""
        return {**vars(self), "path": str(self.path), "complete": self.state == "complete"}


def directory_of(name: str | None) -> Path:
    """Return the checkpoint directory that a user's word means.

    Args:
        name: a checkpoint directory, a run dir or a job id; None: the newest run.

    Raises:
        CannotFind: there is none; the message is a sentence for the user.
    """
    path = Path(name) if name is not None else None
    if path is None or not _is_dir(path):
        return _of_run(find(name))
    if (path / EVENTS).is_file():
        return _of_run(load(path))
    if layout.step_of(path) is not None:
        raise CannotFind(f"{path} is one checkpoint; name the directory it lies in, and `show {layout.step_of(path)}`")
    return path


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # the name is too long, for example
        return False


def _of_run(run: Run) -> Path:
    return run.checkpoint_dir


# --- looking ----------------------------------------------------------------------------------------------


def listed(directory: Path) -> list[CatalogEntry]:
    """Return everything in a directory that is or was to be a checkpoint, newest first.

    Sizes of files are checked, checksums are not.

    Raises:
        OSError: the directory cannot be read.
    """
    found = [_read_entry(step, path) for step, path in layout.list_iterations(directory)]
    found += [_unfinished(step, path) for step, path in layout.list_incomplete(directory)]
    found += [_quarantined(path) for path in _quarantine_of(directory)]
    found += _foreign(directory)
    return sorted(found, key=lambda entry: (-entry.step, entry.state))


def verified(directory: Path, step: int | None, watched: Watched = _unwatched) -> Iterator[CatalogEntry]:
    """Compare every byte of committed checkpoints with its checksum. Damaged checkpoints stay where they are.

    Args:
        directory: the checkpoint directory.
        step: which checkpoint; None: all, newest first.
        watched: shows the progress of each checkpoint.

    Yields:
        First the foreign checkpoints, which are not verified (only if `step` is None), then each verified checkpoint.

    Raises:
        LookupError: there is no such checkpoint; at the first `next`.
    """
    found = [(n, path) for n, path in layout.list_iterations(directory) if step in (None, n)]
    if not found:
        raise _none_of(step, directory)
    if step is None:
        yield from _foreign(directory)
    for number, path in found:
        yield _verified(number, path, watched)


def _verified(step: int, path: Path, watched: Watched) -> CatalogEntry:
    with watched(f"verifying step {step}", verify.size_of(path)) as advance:
        return _read_entry(step, path, lambda: verify.verify(path, advance=advance))


def _read_entry(step: int, path: Path, judge: Callable[[], dict[str, Any]] | None = None) -> CatalogEntry:
    """Return what is known of the committed checkpoint at `path`.

    Args:
        step: the step of the checkpoint.
        path: the directory of the checkpoint.
        judge: compares every byte and returns the metadata, or raises Damaged; None: only sizes are compared.
    """
    try:
        metadata = verify.examine(path) if judge is None else judge()
        common = json.loads((path / layout.COMMON).read_bytes())
    except Damaged as damage:
        return _damaged(step, path, str(damage))
    except OSError as error:
        return _damaged(step, path, f"it cannot be read ({error.strerror})")
    except ValueError as error:
        return _damaged(step, path, f"{layout.COMMON} cannot be read ({error})")
    health = health_mark.of(metadata)
    return CatalogEntry(
        step=step,
        path=path,
        state="complete",
        problem=None,
        verified=None if judge is None else True,
        why=common.get("why"),
        ranks=metadata["world_size"],
        bytes=sum(entry["bytes"] for entry in metadata["files"].values()),
        created=_epoch(common.get("created")),
        health=health["status"],
        health_why=health["why"],
    )


def _damaged(step: int, path: Path, problem: str) -> CatalogEntry:
    return CatalogEntry(step=step, path=path, state="damaged", problem=problem, verified=False)


def _none_of(step: int | None, directory: Path) -> LookupError:
    """Return the error that there is no such checkpoint of ours, which names a foreign checkpoint in its place."""
    others = [path for number, path in layout.list_foreign(directory) if step in (None, number)]
    named = f": {foreign.whose(others[0])}" if others else ""
    return LookupError(f"there is no checkpoint{'' if step is None else f' of step {step}'} in {directory}{named}")


def _foreign(directory: Path) -> list[CatalogEntry]:
    found = layout.list_foreign(directory)
    return [
        CatalogEntry(step=step, path=path, state="foreign", problem=f"{foreign.whose(path)}; it is left alone")
        for step, path in found
    ]


def _unfinished(step: int, path: Path) -> CatalogEntry:
    return CatalogEntry(
        step=step,
        path=path,
        state="interrupted",
        problem="this save, or its deletion, did not come to its end",
    )


def _quarantined(path: Path) -> CatalogEntry:
    try:
        why = read_regular(path.with_name(f"{path.name}.why.txt")).decode(errors="replace").strip()
    except OSError:
        why = "nobody knows why"
    return CatalogEntry(step=layout.step_of(Path(path.stem)) or 0, path=path, state="quarantined", problem=why)


def _quarantine_of(directory: Path) -> list[Path]:
    quarantine = directory / layout.QUARANTINE
    return [path for path in quarantine.iterdir() if path.is_dir()] if quarantine.is_dir() else []


def _epoch(stamp: object) -> float | None:
    """Return the seconds since the epoch of a time stamp in UTC; None if the stamp is missing or malformed."""
    try:
        return datetime.strptime(str(stamp), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


# --- one checkpoint ---------------------------------------------------------------------------------------


def shown(directory: Path, step: int) -> dict[str, Any]:
    """Return the contents of one checkpoint, JSON-ready: its origin, objects, tensors, shards and files.

    Raises:
        LookupError: there is no checkpoint of this step.
        Damaged: the checkpoint is damaged.
        OSError: the checkpoint cannot be read.
    """
    path = layout.iteration_dir(directory, step)
    if not path.is_dir() or layout.is_foreign(path):
        raise _none_of(step, directory)
    metadata = verify.examine(path)
    try:
        common = json.loads((path / layout.COMMON).read_bytes())
        objects = {name: tree.get("kind", "value") for name, tree in common["state"].items() if isinstance(tree, dict)}
    except (ValueError, KeyError, AttributeError) as error:
        raise Damaged(f"{layout.COMMON} cannot be read ({error})") from error
    return {
        "step": metadata["step"],
        "path": str(path),
        **{key: common.get(key) for key in ("why", "created", "consumed_samples", "versions")},
        "ranks": metadata["world_size"],
        "health": health_mark.of(metadata),
        "objects": objects,
        "tensors": metadata["tensors"],
        "files": {name: entry["bytes"] for name, entry in metadata["files"].items()},
    }


# --- pruning ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pruned:
    """What `pruned` has deleted."""

    deleted: list[tuple[int, int]]
    """step and bytes of each deleted checkpoint"""
    cleared: list[int]
    """steps of the interrupted saves whose remains were deleted"""
    stayed: list[str]
    """a sentence for each checkpoint that could not be deleted"""
    journal: Path | None
    """the journal that has the deletions; None: no run is known that saves to this directory"""


def pruned(directory: Path, keep: int, keep_every: int | None, watched: Watched = _unwatched) -> Pruned:
    """Delete old checkpoints and the remains of interrupted saves.

    Args:
        directory: the checkpoint directory.
        keep: how many of the newest checkpoints that verify are kept, at least 1. All checkpoints newer than the oldest
            of these are kept as well, damaged or not.
        keep_every: keep each checkpoint whose step is a multiple of this number; None: no others are kept.
        watched: shows the progress of each verification.

    Raises:
        dirlock.Locked: a job saves to this directory.
        OSError: the directory cannot be read.
    """
    sizes = {entry.step: entry.bytes or 0 for entry in listed(directory)}
    lock = DirLock(directory, name=CHECKPOINT_LOCK)
    try:
        cleared = retention.clear_unfinished(directory)
        retired = list(retention.retire(directory, _until(directory, max(keep, 1), watched), keep_every))
        retired_steps = [step for step, note in retired if note is None]
        cleared_steps = [step for step, note in cleared if note is None]
        run_dir = run_saving_to(directory)
        events = [
            CheckpointDeleted(step=step, path=layout.incomplete_dir(directory, step), why="interrupted", keep=keep)
            for step in cleared_steps
        ]
        events += [
            CheckpointDeleted(step=step, path=layout.iteration_dir(directory, step), why="prune", keep=keep)
            for step in retired_steps
        ]
        if run_dir is not None:
            _note_in_journal(run_dir, events)
    finally:
        lock.release()
    stayed = [note for _, note in [*cleared, *retired] if note]
    journal = None if run_dir is None else run_dir / EVENTS
    return Pruned(
        deleted=[(step, sizes.get(step, 0)) for step in retired_steps],
        cleared=cleared_steps,
        stayed=stayed,
        journal=journal,
    )


def _note_in_journal(run_dir: Path, events: list[CheckpointDeleted]) -> None:
    """Append events to the journal of a run that has ended, as events of its last attempt. Raises OSError."""
    attempts = [event["attempt"] for event in read_events(run_dir) if isinstance(event.get("attempt"), int)]
    journal = Journal(run_dir)
    journal.attempt = max(attempts, default=0)
    try:
        for event in events:
            journal.write(event.name, **event.fields())
    finally:
        journal.close()


def _until(directory: Path, keep: int, watched: Watched) -> int:
    """Return how many complete checkpoints there are, from the newest down to the `keep`-th that verifies.

    Returns:
        The number of all complete checkpoints if fewer than `keep` verify.
    """
    complete = [(step, path) for step, path in layout.list_iterations(directory) if verify.is_complete(path)]
    for number, (step, path) in enumerate(complete, 1):
        keep -= _verified(step, path, watched).verified is True
        if not keep:
            return number
    return len(complete)


def age(entry: CatalogEntry) -> float | None:
    """Return the seconds since a checkpoint was saved; None if this is unknown."""
    return None if entry.created is None else max(0.0, time.time() - entry.created)
