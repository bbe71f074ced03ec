"""The checkpoint store of a job of several nodes, as its head knows it. Runs in the head's event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.nodes.cluster.membership.lineage import life_of
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.stores import CheckpointNotStored

Answer = dict[str, Any]
AskKeeper = Callable[[Answer, Callable[[Answer], None]], None]
"""asks the head's keeper, and passes its answer on"""


class HeadStore:
    """What the keeper has said of the store, and the way to ask it more."""

    def __init__(self, address: str, opened: Mapping[str, Any], report: Callable[[JobEvent], None]) -> None:
        """Take what the keeper has said when it opened the store.

        Args:
            address: the address of the store, as the job's settings have it.
            opened: the keeper's answer to `open`.
            report: takes events.
        """
        self.address = address
        """the address that all nodes must have been given"""
        self.where = str(opened["where"])
        """the address, for people"""
        self.term = int(opened["term"])
        """the term of the head's claim"""
        self.token = str(opened["token"])
        """the token of the head's claim"""
        self.newest = int(opened["newest"])
        """the newest usable step of the store; NONE: there is none"""
        self.beside: dict[str, str] = opened["beside"]
        """the small files beside the head's checkpoints, by name"""
        self.version = 0
        """a number that changes whenever `beside` changes"""
        self._lives = opened["lives"]
        self.report = report
        self.ask_keeper: AskKeeper = lambda request, on_done: None
        """set before anything is asked"""

    def is_memory_current(self, lineage: str) -> bool:
        """Return whether snapshots of a lineage are of the training that the store has.

        They are not if the job has gone on elsewhere since: it may have begun anew there, or have gone back.
        """
        return self._lives is None or life_of(lineage) in self._lives

    def ask(self, request: Answer, on_done: Callable[[Answer], None]) -> None:
        """Ask the keeper; `on_done` takes the answer."""

        def take(answer: Answer) -> None:
            self.newest = answer.get("newest", self.newest)
            self._take_beside(answer.get("beside", self.beside))
            on_done(answer)

        self.ask_keeper(request, take)

    def _take_beside(self, beside: dict[str, str]) -> None:
        if beside != self.beside:
            self.beside = beside
            self.version += 1

    def put_aside(self, above: int, on_done: Callable[[], None]) -> None:
        """Put the steps after `above` aside, as the head's directory has done. A store that fails does it later."""

        def take(answer: Answer) -> None:
            if "error" in answer:
                self.newest = min(self.newest, above) if above != NONE else NONE
                self.report(CheckpointNotStored(self.where, answer["error"], 1))
            on_done()

        self.ask({"do": "put_aside", "above": above}, take)
