"""The copier: a process of its own that keeps copies of snapshots on other nodes, and fetches them from there.

The agent of each node of a job starts one. The copier reads requests (one JSON object a line) from stdin and answers on
stdout. It never imports torch. At the end of stdin the copier ends at once, because a copy is either whole or does not
count. The main thread reads requests; threads of their own send copies, fetch snapshots, and serve other copiers.

    {"do": "begin", "token": hexadecimal, "address": the numeric address to listen at, "memory_dir",
     "bandwidth": bytes a second or null}
        -> {"did": "begin", "port"} or {"did": "begin", "error"}; the first request
    {"do": "attempt", "lineage", "first", "count", "world", "resumed": null or [lineage, step]}: begin an
     attempt. This node has the ranks `first` to `first + count - 1`, or none if it stands by. Copies of `resumed`
     belong to this lineage from now on. All others are deleted, except those of the lineage itself, which an earlier
     copier has kept
        -> {"did": "attempt"} or {"did": "attempt", "error"}
    {"do": "buddy", "to": null or {"node", "address", "port"}}: where copies go; no answer
    {"do": "every", "every"}: copy each step that is a multiple of `every`, the newest first; 0 for none; no answer
    {"do": "copy", "step"}: copy that step now
        -> for each copy that ends, requested or not: {"did": "copied", "lineage", "step", "node", "bytes", "seconds",
           "processor_seconds"} or {..., "error"}; with "asked": true if it was requested
    {"do": "forget"}: delete all copies that others have sent; no answer
    {"do": "freeze", "lineage"}: send and take no copies until the next attempt
        -> {"did": "freeze", "copies": {"RANK": [steps], ...}}: the copies of that lineage, which stay until then
    {"do": "fetch", "lineage", "step", "world", "ranks": {"RANK": {"slot", "from": [{"node", "address", "port"}, ...]}},
     "suppliers": [{"node", "address", "port"}, ...]}: fetch these slots; those of ranks of other nodes are
     deleted when the next attempt begins
        -> {"did": "fetch_plan", "step", "sources": [{"rank", "group", "node", "of", "bytes"}, ...]}: before a
           byte is read: which node supplies what, from the snapshot of rank `of`
        -> {"did": "fetch", "step", "bytes", "seconds", "sources"}: the sources as they were in the end
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

_NICE = 5  # the training comes first, but not by more, because a rank may wait for a slot that is being sent


class Copier:
    """Carries out the agent's requests after `begin`. For the main thread."""

    def __init__(self, request: Mapping[str, Any], send_answer: Callable[[dict[str, Any]], None]) -> None:
        """Listen for other copiers, and start the sender.

        Args:
            request: the request `begin`.
            send_answer: sends an answer to the agent; called from any thread.

        Raises:
            OSError: the address cannot be used, or the memory directory cannot be read.
            ValueError: the request is malformed.
            RuntimeError: no thread can be started.
        """
        self._send_answer = send_answer
        token = bytes.fromhex(request["token"])
        self._node = CopierNode(token, Path(request["memory_dir"]), request["bandwidth"])
        self.port = CopierServer(self._node, request["address"]).port
        self._sender = CopySender(self._node, send_answer)
        self._fetch: tuple[Fetch, threading.Thread] | None = None
        self._fetched: list[Fetch] = []  # all fetches of the attempt
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "attempt": self._begin_attempt,
            "buddy": lambda request: self._sender.send_to(_address(request["to"]) if request["to"] else None),
            "every": lambda request: self._sender.send_every(request["every"]),
            "copy": lambda request: self._sender.send_now(request["step"]),
            "forget": self._forget,
            "freeze": self._freeze,
            "fetch": self._begin_fetch,
        }

    def handle_request(self, request: dict[str, Any]) -> None:
        """Carry out a request."""
        self._handlers[request["do"]](request)

    def _begin_attempt(self, request: dict[str, Any]) -> None:
        self._end_fetch()
        while self._fetched:
            self._fetched.pop().remove_for_others()
        resumed = tuple(request["resumed"]) if request["resumed"] else None
        try:
            self._node.begin(
                lineage=request["lineage"],
                first=request["first"],
                count=request["count"],
                world=request["world"],
                resumed=resumed,
            )
        except (OSError, ValueError) as error:
            self._send_answer({"did": "attempt", "error": why(error)})
            return
        self._sender.check_now()
        self._send_answer({"did": "attempt"})

    def _forget(self, _: dict[str, Any]) -> None:
        """Delete all copies, with a second try, because a later copier would take up what stays."""
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

    def _freeze(self, request: dict[str, Any]) -> None:
        copies = self._node.freeze(request["lineage"])
        self._send_answer({"did": "freeze", "copies": {str(rank): held for rank, held in copies.items()}})

    def _begin_fetch(self, request: dict[str, Any]) -> None:
        self._end_fetch()
        ranks = {int(rank): wanted for rank, wanted in request["ranks"].items()}
        order = FetchOrder(
            lineage=request["lineage"],
            step=request["step"],
            slots={rank: wanted["slot"] for rank, wanted in ranks.items()},
            holders={rank: [_address(node) for node in wanted["from"]] for rank, wanted in ranks.items()},
            suppliers=[_address(node) for node in request["suppliers"]],
        )
        fetch = Fetch(self._node, order, self._send_answer)
        thread = threading.Thread(target=lambda: self._send_answer(fetch.run()), name="fetch", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started
            self._send_answer({"did": "fetch", "step": order.step, "error": str(error)})
            return
        self._fetched.append(fetch)
        self._fetch = fetch, thread

    def _end_fetch(self) -> None:
        """Cancel the fetch under way and wait for its end, so that it does not write into the slots of an attempt."""
        if self._fetch is not None:
            fetch, thread = self._fetch
            fetch.cancel()
            thread.join()
            self._fetch = None


def _address(request: Mapping[str, Any]) -> PeerAddress:
    return PeerAddress(request["node"], request["address"], request["port"])


class AnswerLines:
    """Writes answers to stdout, one JSON object a line. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def send(self, answer: dict[str, Any]) -> None:
        """Send an answer to the agent."""
        with self._lock:
            write_answer(answer)  # if the agent is gone, stdin is closed, too, and `main` ends


def main() -> None:
    """Serve the agent until stdin ends, then end the process."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the agent alone ends the copier
    _give_way()
    copier = None
    answers = AnswerLines()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if copier is not None:
            copier.handle_request(request)
            continue
        try:
            copier = Copier(request, answers.send)
        except (OSError, ValueError, RuntimeError) as error:
            answers.send({"did": "begin", "error": why(error)})
        else:
            answers.send({"did": "begin", "port": copier.port})
    os._exit(0)  # without waiting for the threads


def _give_way() -> None:
    """Lower this process's priority."""
    os.nice(_NICE)
    with suppress(OSError):  # if sessions are scheduled as groups, niceness counts only within one
        Path("/proc/self/autogroup").write_text(str(_NICE))


if __name__ == "__main__":
    main()
