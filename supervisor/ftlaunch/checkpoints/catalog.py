"""What lies in a checkpoint directory: found, judged, shown and thinned out for `ftctl checkpoints`."""

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
"""Entered around long work: what is done, and how many bytes; gives what is told of bytes that are done."""


def _unwatched(_doing: str, _total: int) -> AbstractContextManager[Advance]:
    return nullcontext(ignore)


@dataclass(frozen=True)
class CatalogEntry:
    """A checkpoint, or what is there in the place of one."""

    step: int
    path: Path
    state: str  # complete | damaged | interrupted (a save that was not committed) | quarantined | foreign (not ours)
    problem: str | None  # what is wrong with it
    verified: bool | None = None  # every byte against its checksum; None: not looked at
    why: str | None = None  # it was saved
    ranks: int | None = None
    bytes: int | None = None
    created: float | None = None  # seconds of the epoch
    health: str | None = None  # normal | abnormal | unknown: what was known of its numbers when it was committed
    health_why: str | None = None

    def data(self) -> dict[str, Any]:
        """As `--json` gives it."""
        return {**vars(self), "path": str(self.path), "complete": self.state == "complete"}


def directory_of(name: str | None) -> Path:
    """The checkpoint directory that `name` means: itself, or that of a run dir or a job id. Raises CannotFind."""
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
    except OSError:  # its name is too long, say
        return False


def _of_run(run: Run) -> Path:
    return run.checkpoint_dir


# --- looking ----------------------------------------------------------------------------------------------


def listed(directory: Path) -> list[CatalogEntry]:
    """Everything that is or was to be a checkpoint, newest first. Sizes are checked, checksums are not.

    Raises OSError when the directory cannot be read.
    """
    found = [_look(step, path) for step, path in layout.list_iterations(directory)]
    found += [_unfinished(step, path) for step, path in layout.list_incomplete(directory)]
    found += [_quarantined(path) for path in _shelter(directory)]
    found += _foreign(directory)
    return sorted(found, key=lambda entry: (-entry.step, entry.state))


def verified(directory: Path, step: int | None, watched: Watched = _unwatched) -> Iterator[CatalogEntry]:
    """Committed checkpoints, newest first, or the one of `step`, every byte of each compared with its checksum.

    What is damaged stays where it is. What others have put there comes first, and is not looked into. watched: is
    entered around each. Raises LookupError where there is none.
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
        return _look(step, path, lambda: verify.verify(path, advance=advance))


def _look(step: int, path: Path, judge: Callable[[], dict[str, Any]] | None = None) -> CatalogEntry:
    """judge: compares every byte, and returns the metadata; None: only sizes are looked at."""
    try:
        metadata = verify.examine(path) if judge is None else judge()
        common = json.loads((path / layout.COMMON).read_bytes())
    except Damaged as damage:
        return CatalogEntry(step, path, "damaged", str(damage), verified=False)
    except OSError as error:
        return CatalogEntry(step, path, "damaged", f"it cannot be read ({error.strerror})", verified=False)
    except ValueError as error:
        return CatalogEntry(step, path, "damaged", f"{layout.COMMON} cannot be read ({error})", verified=False)
    size = sum(entry["bytes"] for entry in metadata["files"].values())
    health = health_mark.of(metadata)
    told = common.get("why"), metadata["world_size"], size, _epoch(common.get("created")), *health.values()
    return CatalogEntry(step, path, "complete", None, None if judge is None else True, *told)


def _none_of(step: int | None, directory: Path) -> LookupError:
    """There is no checkpoint of ours; names what others have in its place."""
    others = [path for number, path in layout.list_foreign(directory) if step in (None, number)]
    named = f": {foreign.whose(others[0])}" if others else ""
    return LookupError(f"there is no checkpoint{'' if step is None else f' of step {step}'} in {directory}{named}")


def _foreign(directory: Path) -> list[CatalogEntry]:
    found = layout.list_foreign(directory)
    return [CatalogEntry(step, path, "foreign", f"{foreign.whose(path)}; it is left alone") for step, path in found]


def _unfinished(step: int, path: Path) -> CatalogEntry:
    return CatalogEntry(step, path, "interrupted", "this save, or its deletion, did not come to its end")


def _quarantined(path: Path) -> CatalogEntry:
    try:
        why = read_regular(path.with_name(f"{path.name}.why.txt")).decode(errors="replace").strip()
    except OSError:
        why = "nobody knows why"
    return CatalogEntry(layout.step_of(Path(path.stem)) or 0, path, "quarantined", why)


def _shelter(directory: Path) -> list[Path]:
    shelter = directory / layout.QUARANTINE
    return [path for path in shelter.iterdir() if path.is_dir()] if shelter.is_dir() else []


def _epoch(stamp: object) -> float | None:
    try:
        return datetime.strptime(str(stamp), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


# --- one of them ------------------------------------------------------------------------------------------


def shown(directory: Path, step: int) -> dict[str, Any]:
    """What one checkpoint holds, JSON-ready: where from, its objects, its tensors and their shards.

    Raises LookupError where there is none, layout.Damaged, or OSError.
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


# --- thinning out -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pruned:
    """What `prune` did."""

    deleted: list[tuple[int, int]]  # step, bytes
    cleared: list[int]  # steps of interrupted saves
    stayed: list[str]  # sentences
    journal: Path | None  # has the deletions; None: of no run it is known that it saves here


def pruned(directory: Path, keep: int, keep_every: int | None, watched: Watched = _unwatched) -> Pruned:
    """Delete all but the newest `keep` checkpoints (one at least) that verify, and what interrupted saves have left.

    What is newer than the last of those stays, damaged or not. watched: see `verified`. Raises
    dirlock.Locked while somebody saves here, and OSError.
    """
    sizes = {entry.step: entry.bytes or 0 for entry in listed(directory)}
    lock = DirLock(directory, name=CHECKPOINT_LOCK)
    try:
        cleared = retention.clear_unfinished(directory)
        retired = list(retention.retire(directory, _until(directory, max(keep, 1), watched), keep_every))
        gone = [step for step, note in retired if note is None]
        clear = [step for step, note in cleared if note is None]
        run_dir = run_saving_to(directory)
        events = [CheckpointDeleted(s, layout.incomplete_dir(directory, s), "interrupted", keep) for s in clear]
        events += [CheckpointDeleted(s, layout.iteration_dir(directory, s), "prune", keep) for s in gone]
        if run_dir is not None:
            _note_in_journal(run_dir, events)
    finally:
        lock.release()
    stayed = [note for _, note in [*cleared, *retired] if note]
    journal = None if run_dir is None else run_dir / EVENTS
    return Pruned([(step, sizes.get(step, 0)) for step in gone], clear, stayed, journal)


def _note_in_journal(run_dir: Path, events: list[CheckpointDeleted]) -> None:
    """Append events to the journal of a run that has ended, as of its last attempt. Raises OSError."""
    attempts = [event["attempt"] for event in read_events(run_dir) if isinstance(event.get("attempt"), int)]
    journal = Journal(run_dir)
    journal.attempt = max(attempts, default=0)
    try:
        for event in events:
            journal.write(event.name, **event.fields())
    finally:
        journal.close()


def _until(directory: Path, keep: int, watched: Watched) -> int:
    """How many complete checkpoints there are down to the `keep`-th that verifies; all when there are fewer."""
    complete = [(step, path) for step, path in layout.list_iterations(directory) if verify.is_complete(path)]
    for number, (step, path) in enumerate(complete, 1):
        keep -= _verified(step, path, watched).verified is True
        if not keep:
            return number
    return len(complete)


def age(entry: CatalogEntry) -> float | None:
    """Seconds since it was saved; None where that is not known."""
    return None if entry.created is None else max(0.0, time.time() - entry.created)
