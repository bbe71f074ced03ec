"""The saver: a process of its own that commits held snapshots to storage and verifies checkpoints.

The supervisor starts the saver (`checkpoints/saver_client.py`), sends requests to its stdin, one JSON object a line,
and reads the answers from its stdout. The saver copies bytes, never imports torch, and runs at a low priority, so that
the training comes first. At the end of stdin the supervisor is gone: then the saver kills the processes that the
supervisor has left running, so that no rank outlives its supervisor, and exits.

Requests and answers:

    {"do": "save", "step", "why", "checkpoint_dir", "prefix", "ranks": [slot directory, ...], "keep", "keep_every",
     "bandwidth": bytes a second or null, "abnormal": what is held against its numbers, "cache": where a store has the
     checkpoints too, and the directory is to stay small: {"max_size": bytes, "stored": {STEP: what the store has}}}
        -> {"did": "save", "step", "path", "bytes", "seconds", "health", "displaced": [where an earlier run's checkpoint
            of the same step lies now, ...], "deleted": [steps], "evicted": [steps that were deleted for room],
            "notes": [sentences on what could not be deleted]}
        or {..., "error"}

The savers of several nodes write one checkpoint together, each its part, into one directory. TARGET stands for "step",
"why", "checkpoint_dir", "prefix", "world_size", "abnormal", which are equal in all requests of one checkpoint. An
answer to a request that has failed says why in "error"; nothing was deleted then.

    {"do": "prepare", TARGET}: make the directory, empty
        -> {"did": "prepare", "step", "why"}
    {"do": "write", TARGET, "ranks": {"RANK": slot directory, ...}, "bandwidth"}: into that directory
        -> {"did": "write", "step", "why", "bytes", "seconds"}
    {"do": "commit", TARGET, "keep", "keep_every", "cache", "claim"}: once all ranks' shards are written
        -> {"did": "commit", ...}, else as "save" answers
    {"do": "discard", TARGET}: delete what was written
        -> {"did": "discard", "step", "why"}

A node that does not share that directory writes its part into a directory of its own, which goes to a checkpoint store
from there (`checkpoints/stores/`). The store commits such a checkpoint:

    {"do": "write", ..., "staging": directory}: as above, into an empty directory below this one
    {"do": "join", TARGET, "claim"}: once the part files of all ranks are there: make metadata.json and common.json
        -> {"did": "join", "step", "why", "bytes", "health"}

Requests on one node and on several:

    {"do": "hurry"}: lift the bandwidth limit of the save or write under way, if there is one; no answer
    {"do": "leave"}: exit with 0, and kill nothing; no answer
    {"do": "find", "checkpoint_dir"}: find the newest checkpoint that verifies, and put those that do not in quarantine
        -> {"did": "find", "step", "rejected": [{"step", "why", "to"}]}; step -1: there is none
    {"do": "find", "checkpoint_dir", "healthy_before": step}: the same among the older ones that are marked healthy
    {"do": "find", "load": path of a checkpoint, or of a folder of checkpoints, of another job}: the same there
        -> the same answer, with "load"
    {"do": "go_back", "checkpoint_dir", "step", "skip": [first sample, sample after the last] or null}: note the samples
        that are left out from now on, and put the checkpoints after a step (-1: all) aside
        -> {"did": "go_back", "step", "aside": directory, or "" if no checkpoint was moved, "moved": steps that are
            there now, "skipped": [...] as noted, or null, "not_skipped": why not, or ""}
        or {..., "error"}
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch.extensions import ARBITER_AT, load
from ftlaunch.system.answer_line import write_answer
from ftlaunch.system.descriptors import is_readable, is_writable
from ftlaunch.system.processes import kill_marked
from ftlaunch_contract.checkpoint import (
    health_mark,
    initial,
    layout,
    retention,
    seeds,
    skipped_samples,
    tensor_file,
    verify,
    writer,
)
from ftlaunch_contract.files.rate_limit import Bandwidth
from ftlaunch_contract.pages import fingerprint_ring
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.progress import SlowWork

_IDLE_NICE = 19
_BEHIND_STOP_SECONDS = 2.0
"""how long ranks may take for the step that they make after a stop, to leave a fingerprint for the next run"""
_TERMINAL = 2
"""standard error, which the saver shares with the supervisor"""
_GROUP_NICE = 10
"""gives a tenth of an equal share; at 19 a save of 10 ms took 600 ms on a busy machine"""


Hurry = Callable[[float], bool]
"""Waits up to a number of seconds. Returns True as soon as the bandwidth limit should be lifted."""
_AT_ONCE: Hurry = lambda _: True  # noqa: E731 - for requests without a bandwidth limit
_Problems = (OSError, tensor_file.Damaged)


def save(request: dict[str, Any], hurry: Hurry = _AT_ONCE) -> dict[str, Any]:
    """Commit one step of a job on one node; return the answer, which has `error` if the step was not committed."""
    began = time.monotonic()
    target = _target(request, len(request["ranks"]))
    slots = dict(enumerate(request["ranks"]))
    answer = _about("save", target)
    try:
        writer.prepare(target)
        _write(target, slots=slots, request=request, hurry=hurry)
        done = _commit(target)
    except _Problems as error:
        return {**answer, "error": _reason(error) + _discard(target)}
    _leave_fingerprints(target.checkpoint_dir, slots)
    retired = _retire(target, request)
    seconds = round(time.monotonic() - began, 4)
    return {**answer, **done, "seconds": seconds, **retired}


# --- a checkpoint of several nodes: one saver prepares and commits, the saver of each node writes ------------------


def prepare(request: dict[str, Any], _: Hurry = _AT_ONCE) -> dict[str, Any]:
    """Make the empty directory into which the savers of all nodes write; return the answer."""
    target = _target(request)
    try:
        writer.prepare(target)
    except _Problems as error:
        return {**_about("prepare", target), "error": _reason(error)}
    return _about("prepare", target)


def write(request: dict[str, Any], hurry: Hurry = _AT_ONCE) -> dict[str, Any]:
    """Write the shards of this node's ranks, replacing shards of an earlier try; return the answer."""
    began = time.monotonic()
    target = _target(request)
    slots = {int(rank): slot for rank, slot in request["ranks"].items()}
    if "staging" in request:
        return _stage(target, slots=slots, request=request, hurry=hurry)
    if not (directory := layout.incomplete_dir(target.checkpoint_dir, target.step)).is_dir():
        return {
            **_about("write", target),
            "error": f"{directory} is not there: it was given up, or is on no shared storage",
        }
    try:
        for rank in slots:
            writer.withdraw_shard(target, rank)
        size = _write(target, slots=slots, request=request, hurry=hurry)
    except _Problems as error:
        return {**_about("write", target), "error": _reason(error)}
    _leave_fingerprints(target.checkpoint_dir, slots)
    return {**_about("write", target), "bytes": size, "seconds": round(time.monotonic() - began, 4)}


def _stage(
    target: writer.SaveTarget, slots: Mapping[int, str], request: dict[str, Any], hurry: Hurry
) -> dict[str, Any]:
    """Write the shards of this node's ranks into a directory of this node; return the answer to `write`.

    Args:
        target: what is saved; its directory is this node's, in which only fingerprints are left.
        slots: rank -> directory of the snapshot.
        request: the request, with `staging`.
        hurry: tells when to lift the bandwidth limit.
    """
    began = time.monotonic()
    staged = replace(target, checkpoint_dir=Path(request["staging"]))
    try:
        shutil.rmtree(staged.checkpoint_dir, ignore_errors=True)  # what an earlier try has left
        writer.prepare(staged)
        size = _write(staged, slots=slots, request=request, hurry=hurry)
    except _Problems as error:
        shutil.rmtree(staged.checkpoint_dir, ignore_errors=True)
        return {**_about("write", target), "error": _reason(error)}
    _leave_fingerprints(target.checkpoint_dir, slots)
    return {**_about("write", target), "bytes": size, "seconds": round(time.monotonic() - began, 4)}


def join(request: dict[str, Any], _: Hurry = _AT_ONCE) -> dict[str, Any]:
    """Make metadata.json and common.json of a checkpoint that a store commits; return the answer.

    The `claim` of the request is checked: a head that another one has replaced goes on with no commit.
    """
    target = _target(request)
    place, term = request["claim"]
    try:
        joined = writer.join(target)
        load(ARBITER_AT)(place).check(term)
        if joined.seed is not None:
            seeds.keep(target.checkpoint_dir, joined.seed)
        found = verify.read_metadata(layout.incomplete_dir(target.checkpoint_dir, target.step))
    except (*_Problems, ValueError) as error:
        return {**_about("join", target), "error": _reason(error)}
    return {**_about("join", target), "bytes": joined.bytes, "health": health_mark.of(found)}


def commit(request: dict[str, Any], _: Hurry = _AT_ONCE) -> dict[str, Any]:
    """Commit the shards that the savers of all nodes have written; return the answer.

    The `claim` of the request is checked just before the commit: a head that another one has replaced commits nothing.
    """
    began = time.monotonic()
    target = _target(request)
    place, term = request["claim"]
    try:
        done = _commit(target, lambda: load(ARBITER_AT)(place).check(term))
    except _Problems as error:
        return {**_about("commit", target), "error": _reason(error)}
    retired = _retire(target, request)
    seconds = round(time.monotonic() - began, 4)
    return {**_about("commit", target), **done, "seconds": seconds, **retired}


def discard(request: dict[str, Any], _: Hurry = _AT_ONCE) -> dict[str, Any]:
    """Delete the shards of a checkpoint that will not be committed; return the answer."""
    target = _target(request)
    try:
        writer.discard(target)
    except OSError as error:
        return {**_about("discard", target), "error": _reason(error)}
    return _about("discard", target)


# --- parts of the requests ------------------------------------------------------------------------------------------


def _target(request: dict[str, Any], world_size: int | None = None) -> writer.SaveTarget:
    """Return what a request saves. world_size: number of ranks; None: the request has this number."""
    return writer.SaveTarget(
        checkpoint_dir=Path(request["checkpoint_dir"]),
        step=request["step"],
        why=request["why"],
        prefix=request["prefix"],
        world_size=request["world_size"] if world_size is None else world_size,
        abnormal=request.get("abnormal", ""),
    )


def _about(did: str, target: writer.SaveTarget) -> dict[str, Any]:
    return {"did": did, "step": target.step, "why": target.why}


def _write(target: writer.SaveTarget, slots: Mapping[int, str], request: dict[str, Any], hurry: Hurry) -> int:
    """Write the shards of some ranks, within the bandwidth of the request.

    Args:
        target: what is saved.
        slots: rank -> directory of the snapshot.
        request: may have `bandwidth`, in bytes per second.
        hurry: tells when to lift the bandwidth limit.

    Returns:
        The size of the shards in bytes.

    Raises:
        OSError: a shard cannot be written.
        Damaged: a snapshot is damaged.
    """
    spent = Bandwidth(request["bandwidth"], hurry).spent if request.get("bandwidth") else None
    return sum(writer.write_shard_of(target, rank=rank, slot=Path(slot), spent=spent) for rank, slot in slots.items())


def _commit(target: writer.SaveTarget, permit: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Commit the written shards; return the part of the answer about the checkpoint.

    Args:
        target: what is saved.
        permit: called just before the commit; raises OSError if the commit must not happen.
    """
    displaced: list[Path] = []
    path, size = writer.commit(target, permit, displaced.append)
    health = health_mark.of(verify.read_metadata(path))
    return {"path": str(path), "bytes": size, "health": health, "displaced": [str(to) for to in displaced]}


def _leave_fingerprints(checkpoint_dir: Path, slots: Mapping[int, str]) -> None:
    """Copy the ranks' fingerprints of their newest steps to storage, for a run that resumes from there.

    Ranks that make one more step after a stop are waited for. A copy that fails is ignored: the next resume is then not
    verified, but works all the same.
    """
    rings = {rank: fingerprint_ring.ring_path(Path(slot).parent, rank) for rank, slot in slots.items()}
    deadline = time.monotonic() + _BEHIND_STOP_SECONDS
    wait_until(lambda: not any(map(fingerprint_ring.is_step_awaited, rings.values())), deadline)
    for rank, ring in rings.items():
        copy = layout.fingerprints_path(checkpoint_dir, rank)
        temporary = copy.with_suffix(".tmp")
        with suppress(OSError):
            copy.parent.mkdir(exist_ok=True)
            temporary.write_bytes(ring.read_bytes())
            temporary.rename(copy)


def _retire(target: writer.SaveTarget, request: dict[str, Any]) -> dict[str, Any]:
    """Delete the checkpoints that need not be kept, and those for which there is no room.

    Args:
        target: the checkpoint that was committed.
        request: has `keep`, and may have `keep_every` and `cache`.

    Returns:
        The parts `deleted`, `evicted` and `notes` of the answer.
    """
    notes: list[str] = []
    retired = retention.retire(
        checkpoint_dir=target.checkpoint_dir,
        keep=request["keep"],
        keep_every=request.get("keep_every"),
        spare=target.step,
    )
    deleted = _steps_of(retired, notes)
    evicted: list[int] = []
    if cache := request.get("cache"):
        evicted = _steps_of(
            retention.make_room(
                target.checkpoint_dir,
                cache["max_size"],
                stored={int(step): digest for step, digest in cache["stored"].items()},
                spare=target.step,
            ),
            notes,
        )
    return {"deleted": deleted, "evicted": evicted, "notes": notes}


def _steps_of(deletions: Iterator[tuple[int, str | None]], notes: list[str]) -> list[int]:
    """Carry deletions out, and return their steps. A sentence on each thing that stayed is appended to `notes`."""
    steps = []
    try:
        for step, note in deletions:
            steps.append(step)
            if note:
                notes.append(note)
    except OSError as error:
        notes.append(f"cannot delete an old checkpoint: {error}")
    return steps


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _discard(target: writer.SaveTarget) -> str:
    """Delete what was written so far; return words to append to the error if this fails, else ""."""
    try:
        writer.discard(target)
    except OSError as error:
        return f" (and the incomplete checkpoint could not be removed: {error.strerror})"
    return ""


def find(request: dict[str, Any], _: Hurry = _AT_ONCE) -> dict[str, Any]:
    """Find the newest checkpoint that verifies; return the answer. Long work is reported on the terminal."""
    place = Path(request.get("load") or request["checkpoint_dir"])
    newest = [] if "load" in request else layout.list_iterations(place)[:1]
    size = sum(verify.size_of(directory) for _, directory in newest)
    slow = SlowWork(f"ftlaunch: verifying checkpoints in {place}", size or None, _say)
    if "load" in request:
        step, refusals = initial.find(place, slow.advance)
    else:
        step, refusals = verify.newest_verified(place, request.get("healthy_before"), slow.advance)
    slow.finish()
    return {**request, "did": "find", "step": step, "rejected": [asdict(refusal) for refusal in refusals]}


def go_back(request: dict[str, Any], _: Hurry = _AT_ONCE) -> dict[str, Any]:
    """Put later checkpoints aside and note the samples to leave out; return the answer. May be repeated safely."""
    place = Path(request["checkpoint_dir"])
    step = request["step"]
    about = {"did": "go_back", "step": step}
    skipped = None
    why_not = ""
    if request["skip"] is not None:
        first, end = request["skip"]
        try:
            place.mkdir(parents=True, exist_ok=True)
            skipped = skipped_samples.add(place, first, end)
        except (OSError, ValueError) as error:
            why_not = _reason(error)
    try:
        aside = layout.supersede(place, above=max(step, 0))
    except OSError as error:
        return {**about, "error": _reason(error)}
    moved = [] if aside is None else [number for number, _ in layout.list_iterations(aside)]
    return {**about, "aside": str(aside or ""), "moved": moved, "skipped": skipped, "not_skipped": why_not}


def _say(line: str) -> None:
    """Write a line to the terminal unless the terminal is blocked, as the work must not wait for a terminal."""
    with suppress(OSError):
        if is_writable(_TERMINAL, 0.0):
            os.write(_TERMINAL, f"{line}\n".encode())


_VERBS = {
    "save": save, "prepare": prepare, "write": write, "commit": commit, "discard": discard, "join": join,
    "find": find, "go_back": go_back,
}  # fmt: skip


class Requests:
    """Reads requests from the saver's stdin, one JSON object a line.

    Python's own buffer is not used, because `waiting` could not see what lies in that buffer.
    """

    def __init__(self, fd: int) -> None:
        """Read from the descriptor `fd`."""
        self._fd = fd
        self._splitter = LineSplitter()
        self._lines: deque[bytes] = deque()  # requests that have come and were not taken

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the requests until the supervisor has closed its end."""
        while True:
            if self._lines:
                yield json.loads(self._lines.popleft())
            elif block := os.read(self._fd, 1 << 16):
                self._lines += self._splitter.split(block)
            else:
                return

    def waiting(self, seconds: float) -> bool:
        """Wait up to `seconds`. Return True as soon as a request has arrived or the supervisor is gone."""
        return bool(self._lines) or is_readable(self._fd, seconds)


def main() -> int:
    """Serve requests until stdin ends or "leave" is asked for.

    sys.argv[1] is the marker in the environment of the processes to kill after the supervisor has gone.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a signal to the whole process group must not interrupt a save
    marker = sys.argv[1]
    _give_way()
    requests = Requests(sys.stdin.fileno())
    for request in requests:
        if request["do"] == "leave":
            return 0
        if request["do"] == "hurry":
            continue  # the save that was to hurry is over
        answer = _VERBS[request["do"]](request, requests.waiting)
        if not write_answer(answer):
            break  # the supervisor is gone
    kill_marked(marker)
    return 0


def _give_way() -> None:
    """Lower the priority for processor and disk below the training's, but not so far that saves stand still."""
    this_process = psutil.Process()
    this_process.nice(_IDLE_NICE)
    this_process.ionice(psutil.IOPRIO_CLASS_BE, 7)
    # Where the kernel schedules sessions as groups, niceness counts only within a session, so the group's is set, too.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_GROUP_NICE))


if __name__ == "__main__":
    sys.exit(main())
