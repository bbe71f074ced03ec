"""The copier of a node: what its agent has it do, and what it says to the head.

The copier sends copies of snapshots to another node, keeps those that others send, and fetches what ranks of this node
have lost. One that has died is followed by another one, which keeps nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.memory.pages import Pages
from ftlaunch.nodes.peers.copier_client import CopierLink
from ftlaunch.nodes.peers.plan.copy_costs import steps_between
from ftlaunch.system.resources import count_cpus
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume

_MOST_FAILURES = 5  # copies in a row
_SLACK = 0.5  # part by which another interval must differ
_FETCHED_INTO = 0  # the slot that a fetched snapshot lies in
_MOST_STARTS = 5  # of copiers one after another that have said nothing


class NodeCopier:
    """Of one agent."""

    def __init__(
        self,
        loop: EventLoop[Any],
        start: Callable[[], CopierLink],
        begin: Mapping[str, Any],
        tell: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        """start: raises OSError. begin: the first request. tell: sends a message of `messages.UP`."""
        self._loop, self._start, self._begin, self._tell, self._say = loop, start, dict(begin), tell, say
        self._attempt: dict[str, Any] = {}  # the newest request of each kind: for a copier that follows this one
        self._buddy: dict[str, Any] | None = None
        self._every = self._wants = 0
        self._decided = False  # it is known with what the ranks of the attempt begin
        self.port, self.lineage = 0, ""
        self._numbers: dict[str, int] = {}  # of the head's newest question, by what is asked
        self._fetched_for: list[int] = []  # ranks, of the newest fetch
        self._pages: Pages | None = None
        self._processors = count_cpus()
        self._failures = 0  # copies in a row
        self._silent = 0  # copiers one after another that have said nothing
        self._link: CopierLink | None = None
        self._open()

    def said(self) -> dict[str, Any]:
        """The fields of `copier`, for the head."""
        return {"port": self.port, "lineage": self.lineage, "every": self._wants}

    # --- the process --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._silent += 1
        if self._silent > _MOST_STARTS:
            self._say("no copies of snapshots are made on this node: the process that makes them dies again and again")
            return
        try:
            link = self._start()
            try:
                self._loop.register(link.fd, self._on_answers)
            except OSError:
                link.close(0.0)  # what it says would never be heard
                raise
        except OSError as error:
            self._say(f"no copies of snapshots are made on this node: {error.strerror}")
            return
        self._link = link
        self._ask(self._begin)
        if self._attempt:
            self._ask({**self._attempt, "resumed": None})
            self._ask({"do": "buddy", "to": self._buddy})
            self._set_every(self._every)

    def _ask(self, request: Mapping[str, Any]) -> None:
        if self._link is not None:
            self._link.send(dict(request))

    def _on_answers(self) -> None:
        assert self._link is not None
        answers = self._link.answers()
        if answers is None:
            self._loop.unregister(self._link.fd)
            self._link.close(1.0)
            self._link = None
            self._lose()
            self._open()
            return
        for answer in answers:
            self._silent = 0
            self._heed(answer)

    def _lose(self) -> None:
        """What was asked of a copier that has died is answered for it."""
        self.port, self.lineage = 0, ""
        for page in self._pages.pages if self._pages is not None else ():
            page.sending = NONE
        self._tell("copier", **self.said())
        if "copies" in self._numbers:
            self._tell("copies", number=self._numbers.pop("copies"), held={})
        if "fetch" in self._numbers:
            self._heed({"did": "fetch", "error": "the process that fetches snapshots has died"})

    def look(self, now: float) -> None:
        """See whether the copier can answer."""
        if self._link is not None:
            self._link.look(now)

    # --- what the head says -------------------------------------------------------------------------------------

    def begin(self, message: Mapping[str, Any], pages: Pages) -> None:
        """An attempt begins: `message` is `spawn`, and `pages` are those of its ranks."""
        place, copies, step = message["place"], message["copies"], message["resume"][1]
        resumed = [copies["before"], step] if copies["before"] and step != NONE else None
        self._pages = pages
        self._attempt = {
            "do": "attempt",
            "lineage": message["lineage"],
            "first": place["first"],
            "count": place["count"],
            "world": place["world"],
            "resumed": resumed,
        }
        self._decided = Resume(message["resume"][0]) is not Resume.UNDECIDED
        self._ask(self._attempt)
        self._set_buddy(copies["buddy"])
        self._set_every(copies["every"])
        pages.copy_every(copies["every"])

    def _stand_by(self, message: Mapping[str, Any]) -> None:
        """An attempt begins, or goes on, without ranks of this node."""
        self._pages, self._buddy, self._every = None, None, 0
        if message["step"] == NONE:
            self._ask({"do": "forget"})
        resumed = [message["before"], message["step"]] if message["before"] and message["step"] != NONE else None
        self._attempt = {
            "do": "attempt",
            "lineage": message["lineage"],
            "first": 0,
            "count": 0,
            "world": 0,
            "resumed": resumed,
        }
        self._ask(self._attempt)

    def heed_pages(self, verb: str, values: Sequence[int]) -> None:
        """What the head has done to the pages."""
        if verb == "copy_every":
            self._set_every(values[0])
        elif verb == "decide":
            if not Resume(values[0]).in_memory:
                self._ask({"do": "forget"})  # no copy is of the state with which the ranks begin
            self._decided = Resume(values[0]) is not Resume.UNDECIDED
            self._set_every(self._every)

    def take(self, message: Mapping[str, Any]) -> None:
        """A message of the head."""
        do = message["do"]
        if do == "buddy":
            self._set_buddy(message["to"])
        elif do == "keep":
            self._stand_by(message)
        elif do == "copies":
            self._freeze(message["number"], message["lineage"])
        else:
            self._fetch(message)

    def _set_buddy(self, to: Mapping[str, Any]) -> None:
        """Send copies there from now on; nowhere where it is empty."""
        self._buddy = dict(to) or None
        self._ask({"do": "buddy", "to": self._buddy})

    def _set_every(self, steps: int) -> None:
        """Send copies of every so many steps; 0: of none, and none before it is known with what the ranks begin."""
        self._every = steps
        self._ask({"do": "every", "every": steps if self._decided else 0})

    def _freeze(self, number: int, lineage: str) -> None:
        """Say what is kept, and change nothing of it until the next attempt."""
        if self._link is None:
            self._tell("copies", number=number, held={})
            return
        self._numbers["copies"] = number
        self._ask({"do": "freeze", "lineage": lineage})

    def _fetch(self, message: Mapping[str, Any]) -> None:
        """Fetch snapshots that this node's ranks lack, or that it is to save for ranks of a lost node."""
        self._numbers["fetch"], self._fetched_for = message["number"], [int(rank) for rank in message["ranks"]]
        if self._link is None:
            self._heed({"did": "fetch", "error": "no process that fetches snapshots runs"})
            return
        ranks = {rank: {"slot": _FETCHED_INTO, "from": nodes} for rank, nodes in message["ranks"].items()}
        told = {name: message[name] for name in ("step", "world", "suppliers")}
        self._ask({"do": "fetch", "lineage": self._attempt["lineage"], "ranks": ranks, **told})

    # --- what the copier says -----------------------------------------------------------------------------------

    def _heed(self, answer: Mapping[str, Any]) -> None:
        did = answer["did"]
        if did == "begin":
            self._on_begun(answer)
        elif did == "attempt":
            self.lineage = self._attempt["lineage"]
            self._tell("copier", **self.said())
        elif did == "freeze":
            self._tell("copies", number=self._numbers.pop("copies"), held=answer["copies"])
        elif did == "fetch_plan" and "fetch" in self._numbers:
            self._tell("fetch_planned", number=self._numbers["fetch"], sources=answer["sources"])
        elif did == "fetch" and "fetch" in self._numbers:
            self._on_fetched(answer)
        elif did == "copied" and "error" in answer:
            self._on_failed(answer["error"])
        elif did == "copied":
            self._failures = 0
            self._on_copied(answer)

    def _on_begun(self, answer: Mapping[str, Any]) -> None:
        if "error" in answer:
            self._say(f"no copies of snapshots are made on this node: {answer['error']}")
            return
        self.port = answer["port"]
        self._tell("copier", **self.said())

    def _on_fetched(self, answer: Mapping[str, Any]) -> None:
        """The slots are whole: those of this node's ranks become snapshots of the ranks, which wait for that."""
        error, first = str(answer.get("error", "")), self._attempt["first"]
        pages = self._pages.pages if self._pages is not None else []
        for rank in self._fetched_for if not error else ():
            if first <= rank < first + len(pages):
                pages[rank - first].set_slot(_FETCHED_INTO, answer["step"])
        self._tell(
            "fetched",
            number=self._numbers.pop("fetch"),
            error=error,
            seconds=answer.get("seconds", 0.0),
            bytes=answer.get("bytes", 0),
            sources=answer.get("sources", []),
        )

    def _on_failed(self, why: str) -> None:
        """One copy may fail: the next one is tried. Say it where none succeeds."""
        self._failures += 1
        if self._failures == _MOST_FAILURES:
            self._say(f"cannot copy snapshots to another node: {why}; if this machine is lost, storage is asked")

    def _on_copied(self, answer: Mapping[str, Any]) -> None:
        """Say how many steps are to lie between copies, where that has changed."""
        if self._pages is None:
            return
        step_seconds = max(page.step_seconds for page in self._pages.pages)
        every = steps_between(answer["seconds"], answer["processor_seconds"], step_seconds, self._processors)
        if abs(every - self._wants) > _SLACK * self._wants:
            self._wants = every
            self._tell("copier", **self.said())

    def close(self) -> None:
        """End the copier; what it keeps stays in memory."""
        if self._link is not None:
            self._loop.unregister(self._link.fd)
            self._link.close(1.0)
            self._link = None
