"""Asks the voters of a job over the network, all at once, and waits for as many answers as are needed.

For processes that may wait: the starter, the head's thread that shows its sign of life, and the savers. One thread at a
time.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.channel.connection import Connection, connect
from ftlaunch.nodes.channel.votes.claims import Enough
from ftlaunch.nodes.channel.votes.records import Answer, Record, Voter, dump, parse
from ftlaunch.nodes.channel.votes.voter import VERSION
from ftlaunch.nodes.channel.votes.voter_file import VoterFiles
from ftlaunch_contract.files import untrusted_json

ASK_SECONDS = 2.0
"""seconds after which a voter that has not answered counts as one that does not"""


class VoterLinks:
    """A VoterPort over TCP. Keeps its connections for the next question."""

    def __init__(self, run_dir: Path, token: bytes) -> None:
        """Connect to nobody yet.

        Args:
            run_dir: the run dir of this machine.
            token: the secret that voters must know.
        """
        self._files = VoterFiles(run_dir)
        self._token = token
        self._loop: EventLoop[Any] | None = None  # made for the first question: most jobs have no voters
        self._kept: dict[Voter, Connection] = {}
        self._numbers = itertools.count(1)

    def read_own(self) -> Record | None:
        """Return what this machine's voter has written, or None. Raises OSError: the disk does not answer."""
        found = self._files.read()
        return None if found is None else found.known

    def forget_own(self) -> bool:
        """Remove what this machine's voter has written. Return False if it is running. Raises OSError."""
        return self._files.forget()

    def ask(self, voters: Sequence[Voter], offered: Record | None, enough: Enough) -> dict[str, Answer]:
        """Ask voters what they keep, and offer them a record; see `VoterPort`."""
        if self._loop is None:
            self._loop = EventLoop(time.monotonic)
        question = _Question(self, self._loop, next(self._numbers), voters, offered, enough)
        self._loop.run(question)
        question.close()
        return question.answers

    def connection_to(self, voter: Voter, loop: EventLoop[Any], deadline: float) -> tuple[Connection, bool]:
        """Return a connection to a voter, and whether it was made for an earlier question."""
        kept = self._kept.get(voter)
        if kept is not None:
            return kept, True
        made = connect(
            loop=loop,
            clock=time.monotonic,
            address=voter.address,
            port=voter.port,
            token=self._token,
            deadline=deadline,
            version=VERSION,
        )
        self._kept[voter] = made
        return made, False

    def forget(self, voter: Voter) -> None:
        """Forget a connection that has ended or is given up."""
        connection = self._kept.pop(voter, None)
        if connection is not None:
            connection.close()


class _Question:
    """One question to several voters. Drives the event loop until it is answered."""

    def __init__(
        self,
        links: VoterLinks,
        loop: EventLoop[Any],
        number: int,
        voters: Sequence[Voter],
        offered: Record | None,
        enough: Enough,
    ) -> None:
        self._links = links
        self._loop = loop
        self._number = number
        self._offered = dump(offered)
        self._enough = enough
        self._deadline = time.monotonic() + ASK_SECONDS
        self._waiting = set(voters)
        self.answers: dict[str, Answer] = {}
        for voter in voters:
            self._ask(voter)

    def _ask(self, voter: Voter) -> None:
        connection, was_kept = self._links.connection_to(voter, self._loop, self._deadline)
        connection.on_message = lambda message: self._on_message(voter, message)
        connection.on_end = lambda why: self._on_end(voter, again=was_kept)
        connection.send({"do": "ask", "number": self._number, "to": voter.name, "offered": self._offered})

    def _on_message(self, voter: Voter, message: Mapping[str, Any]) -> None:
        try:
            if message.get("number") != self._number:
                return  # the late answer to an earlier question
            if "error" not in message:
                self.answers[voter.name] = _parse_answer(message)
        except (KeyError, ValueError):
            self._links.forget(voter)
        self._waiting.discard(voter)

    def _on_end(self, voter: Voter, *, again: bool) -> None:
        self._links.forget(voter)
        if again:  # the voter may have been started again since the last question
            self._ask(voter)
        else:
            self._waiting.discard(voter)

    def close(self) -> None:
        """Give up the connections to voters that have not answered, unless there were answers enough."""
        if not self._enough(self.answers):
            for voter in self._waiting:
                self._links.forget(voter)

    # --- for the event loop -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether there are enough answers, or no more will come."""
        return not self._waiting or self._enough(self.answers) or time.monotonic() >= self._deadline

    def handle(self, event: object) -> None:
        """Ignore `event`: nothing posts one."""

    def poll(self) -> None:
        """Do nothing: whatever happens is announced by a descriptor or a timer."""

    def next_poll_at(self) -> float:
        """Return when the question is over at the latest, in monotonic seconds."""
        return self._deadline

    def fail(self, error: Exception) -> None:
        """End with `error`. Raises it."""
        raise error


def _parse_answer(message: Mapping[str, Any]) -> Answer:
    """Return a voter's answer. Raises ValueError and KeyError: it is none."""
    age = untrusted_json.mapping(message, "the answer")["age"]
    if isinstance(age, bool) or not isinstance(age, int | float):
        raise ValueError("the age of the record is no number")
    return Answer(
        taken=message["taken"] is True,
        kept=parse(untrusted_json.mapping(message["kept"], "the record")),
        age_seconds=float(age) if age >= 0 else math.inf,
    )
