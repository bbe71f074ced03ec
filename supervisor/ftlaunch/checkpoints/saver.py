"""The saver: a process of its own that commits held snapshots to storage and verifies checkpoints.

It reads requests (one JSON object a line) from stdin and answers on stdout. It copies bytes and never imports
torch; it runs at the lowest priority, so that the training comes first. When its supervisor is gone (end of stdin) it
ends what that supervisor left running and leaves: no rank outlives its supervisor.

    {"do": "save", "step", "why", "checkpoint_dir", "prefix", "ranks": [slot directory, ...], "keep", "keep_every",
     "bandwidth": bytes a second or null, "abnormal": what is held against its numbers}
        -> {"did": "save", "step", "path", "bytes", "seconds", "health", "deleted": [...], "notes": [...]}
        or {..., "error"}
    {"do": "hurry"}: the save under way, if there is one, is no longer held to its bandwidth; no answer
    {"do": "find", "checkpoint_dir"}
        -> {"did": "find", "step", "rejected": [{"step", "why", "to"}]}; step -1: there is none
    {"do": "find", "checkpoint_dir", "healthy_before": step}: likewise, but only what is older and marked healthy
    {"do": "find", "load": path of a checkpoint or a folder of some, of another job}
        -> likewise, with "load"
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from ftlaunch.system.processes import kill_marked
from ftlaunch_contract.checkpoint import health_mark, initial, retention, tensor_file, verify, writer
from ftlaunch_contract.files.rate_limit import Bandwidth

_IDLE_NICE = 19
_GROUP_NICE = 10  # a tenth of an equal share; at 19 a save of 10 ms took 600 ms on a busy machine


def save(request: dict[str, Any], hurry: Callable[[float], bool] = lambda _: True) -> dict[str, Any]:
    """Commit one step from the slots named; the answer says what was done or why not.

    hurry: waits so many seconds for a reason not to keep to the bandwidth asked for; True when there is one.
    """
    began = time.monotonic()
    target = writer.SaveTarget(
        Path(request["checkpoint_dir"]),
        request["step"],
        request["why"],
        request["prefix"],
        len(request["ranks"]),
        request.get("abnormal", ""),
    )
    answer = {"did": "save", "step": target.step, "why": target.why}
    bound = Bandwidth(request["bandwidth"], hurry).spent if request.get("bandwidth") else None
    try:
        writer.prepare(target)
        for rank, directory in enumerate(request["ranks"]):
            writer.write_shard_of(target, rank, Path(directory), bound)
        path, size = writer.commit(target)
        health = health_mark.of(verify.read_metadata(path))
    except (OSError, tensor_file.Damaged) as error:
        return {**answer, "error": _explain(error, target)}
    deleted, notes = _retire(target, request["keep"], request.get("keep_every"))
    seconds = round(time.monotonic() - began, 4)
    done = {"path": str(path), "bytes": size, "health": health, "seconds": seconds}
    return {**answer, **done, "deleted": deleted, "notes": notes}


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


def _explain(error: Exception, target: writer.SaveTarget) -> str:
    """Delete what was written so far; returns the error in words."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    try:
        writer.discard(target)
    except OSError as second:
        reason += f" (and the incomplete checkpoint could not be removed: {second.strerror})"
    return reason


def find(request: dict[str, Any]) -> dict[str, Any]:
    """The newest checkpoint that verifies, and what was refused on the way."""
    if "load" in request:
        step, refusals = initial.find(Path(request["load"]))
    else:
        step, refusals = verify.newest_verified(Path(request["checkpoint_dir"]), request.get("healthy_before"))
    return {**request, "did": "find", "step": step, "rejected": [asdict(refusal) for refusal in refusals]}


class Requests:
    """The saver's stdin: requests, one JSON object a line, and whether the supervisor has more to say.

    It is read without Python's buffer, into which `waiting` could not look.
    """

    def __init__(self, fd: int) -> None:
        """fd: read until it ends."""
        self._fd, self._buffer = fd, b""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                yield json.loads(line)
            elif block := os.read(self._fd, 1 << 16):
                self._buffer += block
            else:
                return

    def waiting(self, seconds: float) -> bool:
        """Wait until there is more to read, or the supervisor is gone, `seconds` at most; True when so."""
        return b"\n" in self._buffer or bool(select.select([self._fd], [], [], seconds)[0])


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
            continue  # the save that it was about is over
        answer = save(request, requests.waiting) if request["do"] == "save" else find(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
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
