"""The saver: a process of its own that commits held snapshots to storage and verifies checkpoints.

It reads requests (one JSON object a line) from stdin and answers on stdout. It copies bytes and never imports
torch; it runs at the lowest priority, so that the training comes first. When its supervisor is gone (end of stdin) it
ends what that supervisor left running and leaves: no rank outlives its supervisor.

    {"do": "save", "step", "why", "checkpoint_dir", "prefix", "ranks": [slot directory, ...], "keep", "keep_every",
     "bandwidth": bytes a second or null, "abnormal": what is held against its numbers}
        -> {"did": "save", "step", "path", "bytes", "seconds", "health", "displaced": where a checkpoint of the step
            lies now that an earlier run had made, "deleted": [...], "notes": [...]}
        or {..., "error"}

A checkpoint of several nodes is written in parts, by the savers of all nodes into one directory. TARGET stands for
"step", "why", "checkpoint_dir", "prefix", "world_size", "abnormal", the same in all requests of one checkpoint. What
fails says why in "error" and deletes nothing.

    {"do": "prepare", TARGET}: make the directory, empty
        -> {"did": "prepare", "step", "why"}
    {"do": "write", TARGET, "ranks": {"RANK": slot directory, ...}, "bandwidth"}: into that directory
        -> {"did": "write", "step", "why", "bytes", "seconds"}
    {"do": "commit", TARGET, "keep", "keep_every", "claim"}: once all ranks' shards are written
        -> {"did": "commit", ...}, else as "save" answers
    {"do": "discard", TARGET}: delete what was written
        -> {"did": "discard", "step", "why"}

    {"do": "hurry"}: the save or write under way, if there is one, is no longer held to its bandwidth; no answer
    {"do": "find", "checkpoint_dir"}
        -> {"did": "find", "step", "rejected": [{"step", "why", "to"}]}; step -1: there is none
    {"do": "find", "checkpoint_dir", "healthy_before": step}: likewise, but only what is older and marked healthy
    {"do": "find", "load": path of a checkpoint or a folder of some, of another job}
        -> likewise, with "load"
    {"do": "go_back", "checkpoint_dir", "step", "skip": [first sample, sample after the last] or null}: note the samples
        that are left out from now on, and put the checkpoints after a step (-1: all) aside
        -> {"did": "go_back", "step", "aside": directory, or "" where there were none, "moved": steps that are there
            now, "skipped": [...] as noted, or null, "not_skipped": why not, or ""}
        or {..., "error"}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
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
_BEHIND_STOP_SECONDS = 2.0  # how long ranks may take that make a step behind a stop
_TERMINAL = 2  # standard error is the supervisor's
_GROUP_NICE = 10  # a tenth of an equal share; at 19 a save of 10 ms took 600 ms on a busy machine


Hurry = Callable[[float], bool]  # waits so many seconds for a reason not to keep to the bandwidth; True: there is one
_STEADY: Hurry = lambda _: True  # noqa: E731 - what hurries from the beginning
_Problems = (OSError, tensor_file.Damaged)


def save(request: dict[str, Any], hurry: Hurry = _STEADY) -> dict[str, Any]:
    """Commit one step from the slots named; the answer says what was done or why not."""
    began = time.monotonic()
    target = _target(request, len(request["ranks"]))
    answer = _about("save", target)
    try:
        writer.prepare(target)
        _write(target, dict(enumerate(request["ranks"])), request, hurry)
        done = _commit(target)
    except _Problems as error:
        return {**answer, "error": _reason(error) + _discard(target)}
    _leave_fingerprints(target, dict(enumerate(request["ranks"])))
    deleted, notes = _retire(target, request["keep"], request.get("keep_every"))
    seconds = round(time.monotonic() - began, 4)
    return {**answer, **done, "seconds": seconds, "deleted": deleted, "notes": notes}


# --- a checkpoint of several nodes: one saver prepares and commits, the saver of each node writes ------------------


def prepare(request: dict[str, Any], _: Hurry = _STEADY) -> dict[str, Any]:
    """Make the directory for the shards, empty."""
    target = _target(request)
    try:
        writer.prepare(target)
    except _Problems as error:
        return {**_about("prepare", target), "error": _reason(error)}
    return _about("prepare", target)


def write(request: dict[str, Any], hurry: Hurry = _STEADY) -> dict[str, Any]:
    """Write the shards of some ranks from the slots named; what an earlier try has left of them is replaced."""
    began, target = time.monotonic(), _target(request)
    slots = {int(rank): slot for rank, slot in request["ranks"].items()}
    if not (directory := layout.incomplete_dir(target.checkpoint_dir, target.step)).is_dir():
        return {
            **_about("write", target),
            "error": f"{directory} is not there: it was given up, or is on no shared storage",
        }
    try:
        for rank in slots:
            writer.withdraw_shard(target, rank)
        size = _write(target, slots, request, hurry)
    except _Problems as error:
        return {**_about("write", target), "error": _reason(error)}
    _leave_fingerprints(target, slots)
    return {**_about("write", target), "bytes": size, "seconds": round(time.monotonic() - began, 4)}


def commit(request: dict[str, Any], _: Hurry = _STEADY) -> dict[str, Any]:
    """Commit what the savers of all nodes have written."""
    began, target = time.monotonic(), _target(request)
    place, term = request["claim"]
    try:
        done = _commit(target, lambda: load(ARBITER_AT)(place).check(term))
    except _Problems as error:
        return {**_about("commit", target), "error": _reason(error)}
    deleted, notes = _retire(target, request["keep"], request.get("keep_every"))
    seconds = round(time.monotonic() - began, 4)
    return {**_about("commit", target), **done, "seconds": seconds, "deleted": deleted, "notes": notes}


def discard(request: dict[str, Any], _: Hurry = _STEADY) -> dict[str, Any]:
    """Delete what was written of a checkpoint that will not be committed."""
    target = _target(request)
    try:
        writer.discard(target)
    except OSError as error:
        return {**_about("discard", target), "error": _reason(error)}
    return _about("discard", target)


# --- what the answers are made of ----------------------------------------------------------------------------------


def _target(request: dict[str, Any], world_size: int | None = None) -> writer.SaveTarget:
    return writer.SaveTarget(
        Path(request["checkpoint_dir"]),
        request["step"],
        request["why"],
        request["prefix"],
        request["world_size"] if world_size is None else world_size,
        request.get("abnormal", ""),
    )


def _about(did: str, target: writer.SaveTarget) -> dict[str, Any]:
    return {"did": did, "step": target.step, "why": target.why}


def _write(target: writer.SaveTarget, slots: Mapping[int, str], request: dict[str, Any], hurry: Hurry) -> int:
    """Write the shards of the ranks named; returns their bytes. Raises what `writer.write_shard_of` raises."""
    bound = Bandwidth(request["bandwidth"], hurry).spent if request.get("bandwidth") else None
    return sum(writer.write_shard_of(target, rank, Path(slot), bound) for rank, slot in slots.items())


def _commit(target: writer.SaveTarget, permit: Callable[[], None] = lambda: None) -> dict[str, Any]:
    displaced: list[Path] = []
    path, size = writer.commit(target, permit, displaced.append)
    health = health_mark.of(verify.read_metadata(path))
    return {"path": str(path), "bytes": size, "health": health, "displaced": [str(to) for to in displaced]}


def _leave_fingerprints(target: writer.SaveTarget, slots: Mapping[int, str]) -> None:
    """Copy the ranks' fingerprints of their newest steps, for a run that resumes from storage.

    A rank that makes a step behind a stop is waited for. Without a copy a later resume is not verified, and no more.
    """
    rings = {rank: fingerprint_ring.ring_path(Path(slot).parent, rank) for rank, slot in slots.items()}
    deadline = time.monotonic() + _BEHIND_STOP_SECONDS
    wait_until(lambda: not any(map(fingerprint_ring.is_step_awaited, rings.values())), deadline)
    for rank, ring in rings.items():
        copy = layout.fingerprints_path(target.checkpoint_dir, rank)
        temporary = copy.with_suffix(".tmp")
        with suppress(OSError):
            copy.parent.mkdir(exist_ok=True)
            temporary.write_bytes(ring.read_bytes())
            temporary.rename(copy)


def _retire(target: writer.SaveTarget, keep: int, keep_every: int | None) -> tuple[list[int], list[str]]:
    """Delete the checkpoints that need not be kept: their steps, and sentences about what could not be deleted."""
    deleted, notes = [], []
    try:
        for step, note in retention.retire(target.checkpoint_dir, keep, keep_every, target.step):
            deleted.append(step)
            notes += [note] if note else []
    except OSError as error:
        notes.append(f"cannot delete an old checkpoint: {error}")
    return deleted, notes


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _discard(target: writer.SaveTarget) -> str:
    """Delete what was written so far; returns words on what could not be deleted."""
    try:
        writer.discard(target)
    except OSError as error:
        return f" (and the incomplete checkpoint could not be removed: {error.strerror})"
    return ""


def find(request: dict[str, Any], _: Hurry = _STEADY) -> dict[str, Any]:
    """The newest checkpoint that verifies, and what was refused on the way. How far it is, a log is told."""
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


def go_back(request: dict[str, Any], _: Hurry = _STEADY) -> dict[str, Any]:
    """Have storage be as it was at an older step; asked again, it has the same effect."""
    place, step, skip = Path(request["checkpoint_dir"]), request["step"], request["skip"]
    about = {"did": "go_back", "step": step}
    skipped, why_not = None, ""
    if skip is not None:
        try:
            place.mkdir(parents=True, exist_ok=True)
            skipped = skipped_samples.add(place, *skip)
        except (OSError, ValueError) as error:
            why_not = _reason(error)
    try:
        aside = layout.supersede(place, above=max(step, 0))
    except OSError as error:
        return {**about, "error": _reason(error)}
    moved = [] if aside is None else [step for step, _ in layout.list_iterations(aside)]
    return {**about, "aside": str(aside or ""), "moved": moved, "skipped": skipped, "not_skipped": why_not}


def _say(line: str) -> None:
    """A line for the terminal, if that takes it at once: the work must not wait for a terminal that is held."""
    with suppress(OSError):
        if is_writable(_TERMINAL, 0.0):
            os.write(_TERMINAL, f"{line}\n".encode())


_DOERS = {
    "save": save, "prepare": prepare, "write": write, "commit": commit, "discard": discard, "find": find,
    "go_back": go_back,
}  # fmt: skip


class Requests:
    """The saver's stdin: requests, one JSON object a line, and whether the supervisor has more to say.

    It is read without Python's buffer, into which `waiting` could not look.
    """

    def __init__(self, fd: int) -> None:
        """fd: read until it ends."""
        self._fd = fd
        self._splitter = LineSplitter()
        self._lines: deque[bytes] = deque()  # requests that have come and were not taken

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            if self._lines:
                yield json.loads(self._lines.popleft())
            elif block := os.read(self._fd, 1 << 16):
                self._lines += self._splitter.split(block)
            else:
                return

    def waiting(self, seconds: float) -> bool:
        """Wait until there is more to read, or the supervisor is gone, `seconds` at most; True when so."""
        return bool(self._lines) or is_readable(self._fd, seconds)


def main() -> int:
    """Serve until stdin ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a signal to the whole group must not tear a save
    marker = sys.argv[1]
    _give_way()
    requests = Requests(sys.stdin.fileno())
    for request in requests:
        if request["do"] == "leave":
            return 0
        if request["do"] == "hurry":
            continue  # what it was about is over
        answer = _DOERS[request["do"]](request, requests.waiting)
        if not write_answer(answer):
            break  # the supervisor has gone meanwhile
    kill_marked(marker)
    return 0


def _give_way() -> None:
    """Take processor and disk after the training, but not so far behind it that saves come to a standstill."""
    me = psutil.Process()
    me.nice(_IDLE_NICE)
    me.ionice(psutil.IOPRIO_CLASS_BE, 7)
    with suppress(OSError):  # where sessions are scheduled as groups, niceness counts only within ours
        Path("/proc/self/autogroup").write_text(str(_GROUP_NICE))


if __name__ == "__main__":
    sys.exit(main())
