"""The commands that a browser may send to a job: stop, save, let a node leave.

The job's supervisor executes a command and writes it to the journal. The methods run on helper threads of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.history.runs import Run

Newest = Callable[[], Run]
"""Returns the newest run of a job, read from the journal now."""
Ask = Callable[[Newest, dict[str, Any]], Mapping[str, Any]]
"""Sends a request to a job's control socket and returns the answer. Raises CannotCommand."""
_LONGEST_NODE = 255


class CannotCommand(Exception):
    """The job does not execute a command; the message is a sentence."""


class Commands:
    """The commands of one dashboard."""

    def __init__(self, ask: Ask, user: str) -> None:
        """Keep how to ask a job. user: the account that runs the dashboard, for the journal."""
        self._ask = ask
        self._user = user

    def nodes(self, newest: Newest) -> list[dict[str, Any]]:
        """Return place and host of each node that may leave a job of several nodes.

        Raises:
            CannotCommand: the job does not answer.
        """
        answer = self._ask(newest, {"do": "nodes"})
        return [{"place": node["place"], "host": node["host"]} for node in answer["nodes"]]

    def do(self, newest: Newest, asked: object, address: str) -> str:
        """Execute a command from a browser.

        Args:
            newest: returns the job's newest run.
            asked: the JSON of the request, unchecked.
            address: address of the browser, for the journal.

        Returns:
            A sentence about what happens now.

        Raises:
            CannotCommand: there is no such command, or the job does not execute it.
        """
        words = asked if isinstance(asked, dict) else {}
        what = words.get("do")
        node = words.get("node")
        request: dict[str, Any] = {"do": what, "why": f"dashboard of {self._user}, asked from {address}"}
        if what == "stop":
            self._ask(newest, request)
            return "The job is asked to stop: it saves its newest step and ends."
        if what == "save":
            self._ask(newest, request)
            return "A checkpoint of one of the next steps is asked for."
        if what == "drain" and isinstance(node, str) and 0 < len(node) <= _LONGEST_NODE:
            return str(self._ask(newest, request | {"node": node})["done"])
        raise CannotCommand("cannot do that: known are `stop`, `save`, and `drain` with a node")
