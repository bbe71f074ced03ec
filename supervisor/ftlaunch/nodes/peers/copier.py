"""The copier: a process of its own that keeps copies of snapshots on other nodes, and fetches them from there.

It reads requests (one JSON object a line) from stdin and answers on stdout. It never imports torch. Each node of a job
of several nodes has one. At the end of stdin it ends at once: a copy is whole or not there.

    {"do": "begin", "token": hexadecimal, "address": a numeric one of this node, "memory_dir",
     "bandwidth": bytes a second or null}
        -> {"did": "begin", "port"} or {"did": "begin", "error"}; first, and once
    {"do": "attempt", "lineage", "first", "count", "world", "resumed": null or [lineage, step]}: this node has the ranks
     `first` to `first + count - 1`, none where it stands by. Copies of `resumed` are of this lineage from now on; all
     others are deleted but those of the lineage itself, which an earlier copier has kept
        -> {"did": "attempt"} or {"did": "attempt", "error"}
    {"do": "buddy", "to": null or {"node", "address", "port"}}: where copies go; no answer
    {"do": "every", "every"}: copy each step that is a multiple, the newest first; 0: none; no answer
    {"do": "copy", "step"}: copy that step now
        -> of each copy that ended, asked for or not, {"did": "copied", "lineage", "step", "node", "bytes", "seconds",
           "processor_seconds"} or {..., "error"}; with "asked": true where it was asked for
    {"do": "forget"}: delete all copies that others have sent; no answer
    {"do": "freeze", "lineage"}: send and take no copies until the next attempt
        -> {"did": "freeze", "copies": {"RANK": [steps], ...}}: those of that lineage, which stay until then
    {"do": "fetch", "lineage", "step", "world", "ranks": {"RANK": {"slot", "from": [{"node", "address", "port"}, ...]}},
     "suppliers": [{"node", "address", "port"}, ...]}: make these slots whole; those of ranks of other nodes are
     deleted when the next attempt begins
        -> {"did": "fetch_plan", "step", "sources": [{"rank", "group", "node", "of", "bytes"}, ...]}: which node is to
           supply what, from the snapshot of rank `of`: before a byte is read
        -> {"did": "fetch", "step", "bytes", "seconds", "sources"}: as it was, where a node failed meanwhile
        or {"did": "fetch", "step", "error"}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftlaunch.nodes.peers.buddy_link import PeerAddress
from ftlaunch.nodes.peers.copier_node import CopierNode
from ftlaunch.nodes.peers.fetcher import Fetch, FetchOrder
from ftlaunch.nodes.peers.sender import CopySender
from ftlaunch.nodes.peers.server import CopierServer
from ftlaunch.nodes.peers.wire.peer_connection import why
from ftlaunch.system.answer_line import write_answer

_NICE = 5  # the training comes first, but a rank may wait for a slot that is being sent


class Copier:
    """Does what the agent asks, once `begin` was asked."""

    def __init__(self, request: Mapping[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        """Listen. Raises OSError, ValueError, and RuntimeError where no thread may be started."""
        self._tell = tell
        token = bytes.fromhex(request["token"])
        self._node = CopierNode(token, Path(request["memory_dir"]), request["bandwidth"])
        self.port = CopierServer(self._node, request["address"]).port
        self._sender = CopySender(self._node, tell)
        self._fetch: tuple[Fetch, threading.Thread] | None = None
        self._fetched: list[Fetch] = []  # since the attempt began
        self._doers: dict[str, Callable[[dict[str, Any]], None]] = {
            "attempt": self._attempt,
            "buddy": lambda said: self._sender.send_to(_address(said["to"]) if said["to"] else None),
            "every": lambda said: self._sender.send_every(said["every"]),
            "copy": lambda said: self._sender.send_now(said["step"]),
            "forget": self._forget,
            "freeze": self._freeze,
            "fetch": self._begin_fetch,
        }

    def do(self, request: dict[str, Any]) -> None:
        """Do what a request asks."""
        self._doers[request["do"]](request)

    def _attempt(self, said: dict[str, Any]) -> None:
        self._end_fetch()
        while self._fetched:
            self._fetched.pop().let_go()
        resumed = tuple(said["resumed"]) if said["resumed"] else None
        try:
            self._node.begin(said["lineage"], said["first"], said["count"], said["world"], resumed)
        except (OSError, ValueError) as error:
            self._tell({"did": "attempt", "error": why(error)})
            return
        self._sender.look()
        self._tell({"did": "attempt"})

    def _forget(self, _: dict[str, Any]) -> None:
        """No copy counts any more. What cannot be deleted is tried once more: another copier would take it up."""
        kept = self._node.kept
        try:
            kept.forget()
        except OSError:
            try:
                kept.forget()
            except OSError as error:
                cannot = "the copier cannot delete copies that do not count any more"
                sys.stderr.write(f"[ftlaunch] {cannot}: {why(error)}\n")
                sys.stderr.flush()

    def _freeze(self, said: dict[str, Any]) -> None:
        copies = self._node.freeze(said["lineage"])
        self._tell({"did": "freeze", "copies": {str(rank): held for rank, held in copies.items()}})

    def _begin_fetch(self, said: dict[str, Any]) -> None:
        self._end_fetch()
        ranks = {int(rank): told for rank, told in said["ranks"].items()}
        order = FetchOrder(
            said["lineage"],
            said["step"],
            {rank: told["slot"] for rank, told in ranks.items()},
            {rank: [_address(one) for one in told["from"]] for rank, told in ranks.items()},
            [_address(one) for one in said["suppliers"]],
        )
        fetch = Fetch(self._node, order, self._tell)
        thread = threading.Thread(target=lambda: self._tell(fetch.run()), name="fetch", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread may be started
            self._tell({"did": "fetch", "step": order.step, "error": str(error)})
            return
        self._fetched.append(fetch)
        self._fetch = fetch, thread

    def _end_fetch(self) -> None:
        """No fetch writes into slots that belong to an attempt."""
        if self._fetch is not None:
            fetch, thread = self._fetch
            fetch.cancel()
            thread.join()
            self._fetch = None


def _address(said: Mapping[str, Any]) -> PeerAddress:
    return PeerAddress(said["node"], said["address"], said["port"])


class AnswerLines:
    """The copier's stdout: one JSON object a line, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def tell(self, answer: dict[str, Any]) -> None:
        """Say something to the agent."""
        with self._lock:
            write_answer(answer)  # an agent that is gone has closed stdin, too: `main` ends then


def main() -> None:
    """Serve until stdin ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the agent ends it
    _give_way()
    copier = None
    answers = AnswerLines()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if copier is not None:
            copier.do(request)
            continue
        try:
            copier = Copier(request, answers.tell)
        except (OSError, ValueError, RuntimeError) as error:
            answers.tell({"did": "begin", "error": why(error)})
        else:
            answers.tell({"did": "begin", "port": copier.port})
    os._exit(0)  # whatever the threads are doing


def _give_way() -> None:
    os.nice(_NICE)
    with suppress(OSError):  # where sessions are scheduled as groups, niceness counts only within ours
        Path("/proc/self/autogroup").write_text(str(_NICE))


if __name__ == "__main__":
    main()
