"""The saver: a process of its own that commits held snapshots to storage and verifies checkpoints.

It reads requests (one JSON object a line) from stdin and answers on stdout. It copies bytes and never imports
torch; it runs at the lowest priority, off the training's way. When its supervisor is gone (end of stdin) it
ends what that supervisor left running and leaves: no rank outlives its supervisor.

    {"do": "save", "step", "why", "checkpoint_dir", "prefix", "ranks": [slot directory, ...], "keep"}
        -> {"did": "save", "step", "path", "bytes", "seconds", "deleted": [...]}  or  {..., "error"}
    {"do": "find", "checkpoint_dir"}
        -> {"did": "find", "step", "rejected": [{"step", "why", "to"}]}; step -1: there is none
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from ftlaunch.proc import kill_marked
from ftlaunch_hooks import layout, persist

_IDLE_NICE = 19


def save(request: dict[str, Any]) -> dict[str, Any]:
    """Commit one step from the slots named; the answer says what was done or why not."""
    began = time.monotonic()
    target = persist.Target(
        Path(request["checkpoint_dir"]),
        request["step"],
        request["why"],
        request["prefix"],
        len(request["ranks"]),
    )
    answer = {"did": "save", "step": target.step, "why": target.why}
    try:
        persist.prepare(target)
        for rank, directory in enumerate(request["ranks"]):
            persist.write_shard_of(target, rank, Path(directory))
        path, size = persist.commit(target)
    except (OSError, layout.Damaged) as error:
        return {**answer, "error": _explain(error, target)}
    deleted, notes = [], []
    try:
        for step, note in persist.retire(target.checkpoint_dir, request["keep"]):
            deleted.append(step)
            notes += [note] if note else []
    except OSError as error:
        notes.append(f"cannot delete an old checkpoint: {error}")
    seconds = round(time.monotonic() - began, 4)
    return {
        **answer,
        "path": str(path),
        "bytes": size,
        "seconds": seconds,
        "deleted": deleted,
        "notes": notes,
    }


def _explain(error: Exception, target: persist.Target) -> str:
    """The error in words; what was written so far is thrown away."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    try:
        persist.discard(target)
    except OSError as second:
        reason += f" (and the incomplete checkpoint could not be removed: {second.strerror})"
    return reason


def find(request: dict[str, Any]) -> dict[str, Any]:
    """The newest checkpoint that verifies, and what was refused on the way."""
    step, refusals = layout.newest_verified(Path(request["checkpoint_dir"]))
    return {"did": "find", "step": step, "rejected": [asdict(refusal) for refusal in refusals]}


def main() -> int:
    """Serve until stdin ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a signal to the whole group must not tear a save
    marker = sys.argv[1]
    me = psutil.Process()
    me.nice(_IDLE_NICE)
    me.ionice(psutil.IOPRIO_CLASS_BE, 7)
    work = {"save": save, "find": find}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["do"] == "leave":
            return 0
        sys.stdout.write(json.dumps(work[request["do"]](request)) + "\n")
        sys.stdout.flush()
    kill_marked(marker)
    return 0


if __name__ == "__main__":
    sys.exit(main())
