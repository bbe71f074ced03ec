"""Passes requests for logs on to the nodes that have them, where nodes share no run dir with the head.

Logs stay where the ranks ran. The head keeps nothing: it passes one piece on for each request, and none while
much waits to be sent to either node. Runs in the head's event loop and never waits.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

from ftlaunch.nodes.cluster.log_pieces import BUSY, MOST_QUEUED, Reply, Request
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.unshared_nodes import RUN_DIR

HEAD = 0
"""number that stands for the head's own log folder in requests; nodes have numbers from 1 on"""
_ANSWER_SECONDS = 2.0  # for a node's answer; the agent that asks waits a little longer for the head's
_MOST_WAITING = 16  # requests that nodes have not answered
_QUIET_SECONDS = 1.0  # without a request, after which nobody follows logs
_FAREWELL_SECONDS = 5.0  # most seconds for which a job that is over waits for those who follow its logs


class _Waiting(NamedTuple):
    """A request that a node has not answered."""

    key: int
    """of the node's member"""
    reply: Reply
    deadline: float
    """in monotonic seconds"""


class NodeLogs:
    """The requests for logs at one head."""

    def __init__(self, nodes: Mapping[int, Node], ranks_each: int, clock: Callable[[], float]) -> None:
        """Ask nothing yet.

        Args:
            nodes: the connected nodes, by the key of their members.
            ranks_each: the number of ranks of each node.
            clock: monotonic seconds.
        """
        self._nodes = nodes
        self._each = ranks_each
        self._clock = clock
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._asked_at = -inf
        self._over_since: float | None = None
        self.serve_own: Callable[[Request, Reply], None] = lambda request, reply: reply(dict(BUSY))
        """answers a request from the head's own log folder"""

    def answer(self, request: Request, reply: Reply) -> None:
        """Answer a request for logs, now or later.

        Args:
            request: `what` is `nodes`: which nodes have logs of their own; or what log_pieces.py lists, of the `node`
                with this number. Not checked.
            reply: takes the answer.
        """
        self._asked_at = self._clock()
        if request.get("what") == "nodes":
            reply(self._describe_nodes())
            return
        key = request.get("node")
        if key == HEAD:
            self.serve_own(request, lambda answer: reply({**answer, "head_wall": time.time()}))
            return
        node = self._nodes.get(key) if isinstance(key, int) else None
        if node is None or RUN_DIR not in node.apart:
            reply({"ok": False, "error": "cannot read these logs: that node is lost, or has left the job"})
        elif len(self._waiting) >= _MOST_WAITING or node.connection.queued > MOST_QUEUED:
            reply(dict(BUSY))
        else:
            number = next(self._numbers)
            self._waiting[number] = _Waiting(node.member.key, reply, self._clock() + _ANSWER_SECONDS)
            node.send("logs", number=number, request=dict(request))

    def _describe_nodes(self) -> dict[str, Any]:
        rows = []
        for key, node in self._nodes.items():
            if RUN_DIR in node.apart:
                place = node.member.place
                ranks = list(range(place * self._each, (place + 1) * self._each)) if place >= 0 else []
                row = {"key": key, "place": place if place >= 0 else None, "ranks": ranks}
                rows.append({**row, "host": node.host, "address": node.address})
        return {
            "ok": True,
            "nodes": rows,
            "ranks_each": self._each,
            "head_host": socket.gethostname(),
            "over": self._over_since is not None,
        }

    def handle_answer(self, message: Mapping[str, Any]) -> None:
        """Pass a node's answer on, unless its time is over. message: the message `logs`."""
        waiting = self._waiting.pop(message["number"], None)
        if waiting is not None:
            waiting.reply({**message["answer"], "head_wall": time.time()})

    def lose(self, node: Node, why: str) -> None:
        """Answer the requests to a node that is lost."""
        for number, waiting in list(self._waiting.items()):
            if waiting.key == node.member.key:
                del self._waiting[number]
                waiting.reply({"ok": False, "error": f"cannot read these logs: {node.name} is lost: {why}"})

    def poll(self) -> None:
        """Answer the requests that a node has not answered in time."""
        now = self._clock()
        for number, waiting in list(self._waiting.items()):
            if now > waiting.deadline:
                del self._waiting[number]
                error = f"cannot read these logs: {self._name(waiting.key)} has not answered for {_ANSWER_SECONDS:g} s"
                waiting.reply({"ok": False, "error": error})

    def _name(self, key: int) -> str:
        node = self._nodes.get(key)
        return "that node" if node is None else node.name

    def have_been_read(self) -> bool:
        """Return whether a job that is over may end: nobody follows logs, or those who do have had their time.

        The first call tells those who follow logs that no more lines will come.
        """
        now = self._clock()
        if self._over_since is None:
            self._over_since = now
        return now > min(self._asked_at + _QUIET_SECONDS, self._over_since + _FAREWELL_SECONDS)
