"""What a browser may ask of a job: to stop, to save, to let a node leave. The job's supervisor does and journals it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.history.runs import Run

Newest = Callable[[], Run]
"""The newest run of a job's supervisor, as the journal tells it now."""
Ask = Callable[[Newest, dict[str, Any]], Mapping[str, Any]]
"""Asks a job on its control socket. Raises CannotCommand."""
_LONGEST_NODE = 255


class CannotCommand(Exception):
    """The job does not do what was asked; the message is a sentence."""


class Commands:
    """Of one dashboard."""

    def __init__(self, ask: Ask, user: str) -> None:
        """user: the account that the dashboard runs under."""
        self._ask, self._user = ask, user

    def nodes(self, newest: Newest) -> list[dict[str, Any]]:
        """The nodes that may leave a job of several: place and host. Raises CannotCommand."""
        answer = self._ask(newest, {"do": "nodes"})
        return [{"place": node["place"], "host": node["host"]} for node in answer["nodes"]]

    def do(self, newest: Newest, asked: object, address: str) -> str:
        """Do what a browser at `address` has asked; returns what happens now. Raises CannotCommand."""
        words = asked if isinstance(asked, dict) else {}
        what, node = words.get("do"), words.get("node")
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
