"""The keeper: a process of its own that keeps a job's committed checkpoints in a store. Never imports torch.

It reads requests (one JSON object a line) from stdin and answers on stdout, as the saver does, at the lowest priority.
When its supervisor is gone (end of stdin), it leaves after the request under way.

    {"do": "open", "store": address, "directory", "memory": directory, "job", "owner", "newer_than": step,
     "bandwidth": bytes a second or null}
        take the store over; if the job has gone on elsewhere, quarantine strays and delete the snapshots in memory;
        bring the newest checkpoint if it is newer than step `newer_than` and than those of the directory
        -> {"did": "open", "where", "newest": step or -1, "brought": [step, ...], "strays": [step, ...],
            "refused": [{"step", "why"}, ...], "forgotten": step that memory had and that was deleted, or -1}
    {"do": "put_aside", "above": step}: the job begins anew (-1), or goes on from this older step; later steps leave
        the list of usable steps, and their files stay in the store
        -> {"did": "put_aside"}
    {"do": "publish", "keep", "keep_every"}: make the store have what the directory has
        -> {"did": "publish", "steps": [...], "bytes", "seconds", "deleted": [...]}
    {"do": "hurry"}: an upload under way need not keep to its bandwidth; no answer
    {"do": "leave"}: end

What fails says why in "error", a sentence or the end of one; "overtaken" is true with it if another process keeps the
store now. After that nothing is ever committed by this process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftlaunch.checkpoints.saver import Requests
from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch.checkpoints.stores.stored_checkpoints import ForeignStoreError, OvertakenError, StoredCheckpoints
from ftlaunch.memory.directory import forget_snapshots
from ftlaunch.system.answer_line import write_answer
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.rate_limit import Bandwidth
from ftlaunch_contract.progress import ignore

_NICE = 19

Answer = dict[str, Any]


class Keeper:
    """Carries requests out, one after another."""

    def __init__(self, is_hurried: Callable[[float], bool]) -> None:
        """Know no store yet.

        Args:
            is_hurried: waits up to the given seconds, and returns True as soon as there is a reason to hurry.
        """
        self._is_hurried = is_hurried
        self._stored: StoredCheckpoints | None = None

    def carry_out(self, request: Answer) -> Answer:
        """Return the answer to a request."""
        about = {"did": request["do"]}
        try:
            return {**about, **self._do(request)}
        except OvertakenError as error:
            return {**about, "error": str(error), "overtaken": True}
        except (ForeignStoreError, ValueError) as error:
            return {**about, "error": str(error), "overtaken": False}
        except OSError as error:
            return {**about, "error": error.strerror or str(error), "overtaken": False}

    def _do(self, request: Answer) -> Answer:
        if request["do"] == "open":
            return self._open(request)
        assert self._stored is not None, "the first request is to open"
        if request["do"] == "put_aside":
            self._stored.put_aside(request["above"])
            return {}
        began = time.monotonic()
        published = self._stored.publish(request["keep"], request["keep_every"])
        return {**asdict(published), "seconds": round(time.monotonic() - began, 4)}

    def _open(self, request: Answer) -> Answer:
        bandwidth = request["bandwidth"]
        directory = Path(request["directory"])
        stored = StoredCheckpoints(
            open_store(request["store"]),
            directory,
            job=request["job"],
            owner=request["owner"],
            spent=ignore if bandwidth is None else Bandwidth(bandwidth, self._is_hurried).spent,
        )
        stored.claim()
        memory = Path(request["memory"])
        strays = stored.quarantine_strays(forget_memory=lambda: forget_snapshots(memory))
        newer_than = -1 if stored.went_on_elsewhere else request["newer_than"]
        before = {step for step, _ in layout.list_iterations(directory)}
        refused = stored.bring(newer_than)
        self._stored = stored
        return {
            "where": stored.where,
            "newest": stored.newest,
            "brought": sorted({step for step, _ in layout.list_iterations(directory)} - before),
            "strays": strays,
            "refused": [asdict(step) for step in refused],
            "forgotten": request["newer_than"] if stored.went_on_elsewhere else -1,
        }


def main() -> int:
    """Serve until stdin ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a signal to the whole group must not tear an upload
    os.nice(_NICE)
    requests = Requests(sys.stdin.fileno())
    keeper = Keeper(requests.waiting)
    for request in requests:
        if request["do"] == "leave":
            return 0
        if request["do"] == "hurry":
            continue  # what was to be hurried is over
        if not write_answer(keeper.carry_out(request)):
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
