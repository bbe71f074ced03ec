"""The agent's side of the copier: passes the head's orders to the copier process, and its answers to the head.

The copier process (`ftlaunch.nodes.peers.copier`) sends copies of snapshots to another node, keeps copies that other
nodes send, and fetches snapshots that ranks of this node have lost. A copier that dies is replaced by a new one that
keeps no copies yet. `NodeCopier` runs in the agent's event loop.
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

_MOST_FAILURES = 5  # failed copies in a row after which the terminal is told
_SLACK = 0.5  # the fraction by which a new interval must differ from the last one to be reported
_FETCHED_INTO = 0  # the slot for fetched snapshots
_MOST_STARTS = 5  # copiers in a row that die without an answer before no more are started


def _resumed_copies(lineage: str, step: int) -> list[Any] | None:
    """Return the lineage and the step of copies that stay valid in a new attempt, or None if none do."""
    return [lineage, step] if lineage and step != NONE else None


class NodeCopier:
    """The agent's connection to its copier."""

    def __init__(
        self,
        loop: EventLoop[Any],
        start: Callable[[], CopierLink],
        begin: Mapping[str, Any],
        send: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        """Start the copier; the node goes on without copies if it cannot be started.

        Args:
            loop: the agent's event loop.
            start: starts a copier process. Raises OSError.
            begin: the first request to each copier.
            send: sends a message of `messages.UP`.
            say: writes a sentence to this node's terminal.
        """
        self._loop = loop
        self._start_process = start
        self._begin = dict(begin)
        self._send = send
        self._say = say
        # The newest orders are kept for a copier that replaces this one: attempt, buddy and interval.
        self._attempt: dict[str, Any] = {}
        self._buddy: dict[str, Any] | None = None
        self._every = 0  # steps between copies, as the head has ordered; 0: none
        self._affordable_every = 0  # steps between copies that this node can afford, as last reported
        self._decided = False  # whether the state with which the ranks of the attempt begin is known
        self.port = 0
        """the port at which the copier accepts copies; 0 while there is none"""
        self.lineage = ""
        """the lineage that the copier keeps copies of; empty while there is none"""
        self._numbers: dict[str, int] = {}  # the number of the head's newest question, by its kind
        self._fetched_for: list[int] = []  # the ranks of the newest fetch
        self._pages: Pages | None = None  # of the node's ranks; None while the node stands by
        self._processors = count_cpus()
        self._failures = 0  # failed copies in a row
        self._silent = 0  # copiers in a row that have given no answer yet
        self._link: CopierLink | None = None
        self._start_copier()

    def describe(self) -> dict[str, Any]:
        """Return this copier's state: the fields of the message `copier` to the head."""
        return {"port": self.port, "lineage": self.lineage, "every": self._affordable_every}

    # --- the process --------------------------------------------------------------------------------------------

    def _start_copier(self) -> None:
        self._silent += 1
        if self._silent > _MOST_STARTS:
            self._say("no copies of snapshots are made on this node: the process that makes them dies again and again")
            return
        try:
            link = self._start_process()
            try:
                self._loop.register(link.fd, self._on_answers)
            except OSError:
                link.close(0.0)  # without the loop nobody would read its answers
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
            self._answer_for_dead()
            self._start_copier()
            return
        for answer in answers:
            self._silent = 0
            self._handle_answer(answer)

    def _answer_for_dead(self) -> None:
        """Answer the head's open questions in place of a copier that has died."""
        self.port = 0
        self.lineage = ""
        for page in self._pages.pages if self._pages is not None else ():
            page.sending = NONE
        self._send("copier", **self.describe())
        if "copies" in self._numbers:
            self._send("copies", number=self._numbers.pop("copies"), held={})
        if "fetch" in self._numbers:
            self._handle_answer({"did": "fetch", "error": "the process that fetches snapshots has died"})

    def poll(self, now: float) -> None:
        """Check whether the copier still answers."""
        if self._link is not None:
            self._link.poll(now)

    # --- what the head says -------------------------------------------------------------------------------------

    def begin(self, message: Mapping[str, Any], pages: Pages) -> None:
        """Begin an attempt with ranks on this node.

        Args:
            message: the head's message `spawn`.
            pages: the pages of the node's ranks.
        """
        place = message["place"]
        copies = message["copies"]
        step = message["resume"][1]
        resumed = _resumed_copies(copies["before"], step)
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
        """Begin or go on with an attempt that has no ranks on this node. message: the head's message `keep`."""
        self._pages = None
        self._buddy = None
        self._every = 0
        if message["step"] == NONE:
            self._ask({"do": "forget"})
        resumed = _resumed_copies(message["before"], message["step"])
        self._attempt = {
            "do": "attempt",
            "lineage": message["lineage"],
            "first": 0,
            "count": 0,
            "world": 0,
            "resumed": resumed,
        }
        self._ask(self._attempt)

    def follow_pages(self, verb: str, values: Sequence[int]) -> None:
        """Follow a change that the head has made to the pages.

        Args:
            verb: the method of the pages that the head has called.
            values: its arguments.
        """
        if verb == "copy_every":
            self._set_every(values[0])
        elif verb == "decide":
            if not Resume(values[0]).in_memory:
                self._ask({"do": "forget"})  # the ranks do not begin from memory: no copy is of their state
            self._decided = Resume(values[0]) is not Resume.UNDECIDED
            self._set_every(self._every)

    def obey(self, message: Mapping[str, Any]) -> None:
        """Obey a message of the head: `buddy`, `keep`, `copies` or `fetch`."""
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
        """Send copies to the node `to` from now on; send none if `to` is empty."""
        self._buddy = dict(to) or None
        self._ask({"do": "buddy", "to": self._buddy})

    def _set_every(self, steps: int) -> None:
        """Copy a snapshot every `steps` steps; 0 copies none.

        No copies are made before the state with which the ranks begin is known.
        """
        self._every = steps
        self._ask({"do": "every", "every": steps if self._decided else 0})

    def _freeze(self, number: int, lineage: str) -> None:
        """Report which copies are kept, and keep exactly these until the next attempt."""
        if self._link is None:
            self._send("copies", number=number, held={})
            return
        self._numbers["copies"] = number
        self._ask({"do": "freeze", "lineage": lineage})

    def _fetch(self, message: Mapping[str, Any]) -> None:
        """Fetch snapshots that this node's ranks lack, or that this node must save for ranks of a lost node."""
        self._numbers["fetch"] = message["number"]
        self._fetched_for = [int(rank) for rank in message["ranks"]]
        if self._link is None:
            self._handle_answer({"did": "fetch", "error": "no process that fetches snapshots runs"})
            return
        ranks = {rank: {"slot": _FETCHED_INTO, "from": nodes} for rank, nodes in message["ranks"].items()}
        self._ask(
            {
                "do": "fetch",
                "lineage": self._attempt["lineage"],
                "ranks": ranks,
                "step": message["step"],
                "world": message["world"],
                "suppliers": message["suppliers"],
            }
        )

    # --- what the copier says -----------------------------------------------------------------------------------

    def _handle_answer(self, answer: Mapping[str, Any]) -> None:
        did = answer["did"]
        if did == "begin":
            self._on_begun(answer)
        elif did == "attempt":
            self.lineage = self._attempt["lineage"]
            self._send("copier", **self.describe())
        elif did == "freeze":
            self._send("copies", number=self._numbers.pop("copies"), held=answer["copies"])
        elif did == "fetch_plan" and "fetch" in self._numbers:
            self._send("fetch_planned", number=self._numbers["fetch"], sources=answer["sources"])
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
        self._send("copier", **self.describe())

    def _on_fetched(self, answer: Mapping[str, Any]) -> None:
        """Report a finished or failed fetch, and publish fetched slots to this node's ranks, which wait for them."""
        error = str(answer.get("error", ""))
        first = self._attempt["first"]
        pages = self._pages.pages if self._pages is not None else []
        if not error:
            for rank in self._fetched_for:
                if first <= rank < first + len(pages):
                    pages[rank - first].set_slot(_FETCHED_INTO, answer["step"])
        self._send(
            "fetched",
            number=self._numbers.pop("fetch"),
            error=error,
            seconds=answer.get("seconds", 0.0),
            bytes=answer.get("bytes", 0),
            sources=answer.get("sources", []),
        )

    def _on_failed(self, why: str) -> None:
        """Count a failed copy, and tell the terminal once _MOST_FAILURES copies in a row have failed."""
        self._failures += 1
        if self._failures == _MOST_FAILURES:
            self._say(f"cannot copy snapshots to another node: {why}; if this machine is lost, storage is asked")

    def _on_copied(self, answer: Mapping[str, Any]) -> None:
        """Report the affordable number of steps between copies if it has changed by much."""
        if self._pages is None:
            return
        step_seconds = max(page.step_seconds for page in self._pages.pages)
        every = steps_between(
            seconds=answer["seconds"],
            processor_seconds=answer["processor_seconds"],
            step_seconds=step_seconds,
            processors=self._processors,
        )
        if abs(every - self._affordable_every) > _SLACK * self._affordable_every:
            self._affordable_every = every
            self._send("copier", **self.describe())

    def close(self) -> None:
        """End the copier; the copies that it keeps stay in memory."""
        if self._link is not None:
            self._loop.unregister(self._link.fd)
            self._link.close(1.0)
            self._link = None
