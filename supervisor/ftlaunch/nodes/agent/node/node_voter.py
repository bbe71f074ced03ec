"""The agent's side of the voter: starts the process on the head's order, and tells the head where it is asked.

A voter that dies is replaced. Runs in the agent's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.peers.copier_client import CopierLink

VOTER = "ftlaunch.nodes.channel.votes.voter"
"""the module that the process runs"""
_MOST_STARTS = 5  # voters in a row that die without an answer before no more are started
_CLOSE_SECONDS = 1.0  # that a voter has to end


class NodeVoter:
    """The voter of one agent."""

    def __init__(
        self,
        loop: EventLoop[Any],
        start: Callable[[], CopierLink],
        begin: Mapping[str, Any],
        send: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        """Start nothing yet.

        Args:
            loop: the agent's event loop.
            start: starts a voter process. Raises OSError.
            begin: the first request to each voter, without the term.
            send: sends a message of `messages.UP`.
            say: writes a sentence to this node's terminal.
        """
        self._loop = loop
        self._start_process = start
        self._begin = begin
        self._send = send
        self._say = say
        self._link: CopierLink | None = None
        self._head: Mapping[str, Any] = {}  # term and process of the head that has ordered the voter
        self._silent = 0  # voters in a row that have given no answer yet

    def begin(self, term: int, head: str) -> None:
        """Have a voter take up its work under the head that has ordered it: its term and its process."""
        self._head = {"term": term, "head": head}
        self._silent = 0
        if self._link is None:
            self._start()
        else:
            self._ask()

    def _start(self) -> None:
        self._silent += 1
        if self._silent > _MOST_STARTS:
            self._fail("the process dies again and again")
            return
        try:
            link = self._start_process()
            try:
                self._loop.register(link.fd, self._on_answers)
            except OSError:
                link.close(0.0)
                raise
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        self._link = link
        self._ask()

    def _ask(self) -> None:
        assert self._link is not None
        self._link.send({**self._begin, **self._head})

    def _fail(self, why: str) -> None:
        self._say(f"this node has no vote in who the head is: {why}")
        self._send("voter", name="", port=0)

    def _on_answers(self) -> None:
        assert self._link is not None
        answers = self._link.answers()
        if answers is None:
            self._loop.unregister(self._link.fd)
            self._link.close(_CLOSE_SECONDS)
            self._link = None
            self._start()
            return
        for answer in answers:
            self._silent = 0
            if "error" in answer:
                self._fail(answer["error"])
            else:
                self._send("voter", name=answer["name"], port=answer["port"])

    def poll(self, now: float) -> None:
        """Check that the voter is not stopped. now: monotonic seconds."""
        if self._link is not None:
            self._link.poll(now)

    def close(self) -> None:
        """End the voter, if there is one."""
        if self._link is not None:
            self._loop.unregister(self._link.fd)
            self._link.close(_CLOSE_SECONDS)
            self._link = None
