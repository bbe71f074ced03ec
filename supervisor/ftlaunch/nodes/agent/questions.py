"""Passes requests on the control socket of a node's agent to the head, and the head's answers back to the clients.

Runs in the agent's event loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.nodes.agent.agent import Agent
from ftlaunch.system.control_socket import Client, Control, ControlServer
from ftlaunch.system.loop import Clock, Loop

ANSWER_SECONDS = 3.0
"""seconds that the head may take for an answer; `ftctl` waits a little longer for the agent's"""
_MOST_QUESTIONS = 16  # waiting at once


class Questions:
    """The requests to one agent. Each gets exactly one answer: the head's, or the reason why there is none."""

    def __init__(self, loop: Loop, clock: Clock, control: Control, agent: Agent, say: Callable[[str], None]) -> None:
        """Serve the control socket from now on.

        Args:
            loop: the agent's event loop.
            clock: monotonic seconds.
            control: the control socket.
            agent: knows the connection to the head, and is asked to stop if there is no head.
            say: writes a sentence to the terminal if a client cannot be accepted.
        """
        self._loop = loop
        self._clock = clock
        self._agent = agent
        self._waiting: dict[int, Client] = {}
        self._say = say
        self._has_complained = False
        self._numbers = itertools.count(1)
        agent.on_answer = self.deliver_answer
        ControlServer(control, loop, clock, self.ask, self._on_no_client)

    def _on_no_client(self, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._say(f"cannot accept a client on the control socket: {error.strerror}; it is tried again")

    def ask(self, client: Client, request: Mapping[str, Any]) -> None:
        """Pass a request on to the head.

        Without a head, a request to stop stops only this node, and all other requests are refused.
        """
        link = self._agent.link
        if link.alone_since is None and len(self._waiting) < _MOST_QUESTIONS:
            number = next(self._numbers)
            self._waiting[number] = client
            self._loop.call_at(self._clock() + ANSWER_SECONDS, (self, number), lambda: self._on_timeout(number))
            link.send("ask", number=number, request=request)
        elif link.alone_since is None:
            self._refuse(client, f"{_MOST_QUESTIONS} other questions are waiting for the head's answers; ask again")
        elif request.get("do") == "stop":
            self._agent.ask_stop(str(request.get("why", "asked on the control socket"))[:200])
            client.answer({"ok": True})
        else:
            since = duration(self._clock() - link.alone_since)
            lost = "there is no head of the job" if link.was_met else "this node has not met a head of the job yet"
            self._refuse(client, f"{lost}: none answers at {link.endpoint} for {since} now ({link.why})")

    def deliver_answer(self, number: int, answer: Mapping[str, Any]) -> None:
        """Pass the head's answer on to the client that has asked, if the client still waits."""
        client = self._waiting.pop(number, None)
        if client is not None:
            self._loop.cancel((self, number))
            client.answer({**answer, "head_at": self._agent.link.endpoint})

    def _on_timeout(self, number: int) -> None:
        waited = f"the head at {self._agent.link.endpoint} has not answered for {ANSWER_SECONDS:g} s"
        self._refuse(self._waiting.pop(number), f"{waited}: it is frozen, or the network between is cut")

    def _refuse(self, client: Client, error: str) -> None:
        client.answer({"ok": False, "error": error, "head_at": None})

    def close(self) -> None:
        """Refuse all requests that still wait, because the agent ends."""
        for number, client in self._waiting.items():
            self._loop.cancel((self, number))
            self._refuse(client, "the agent of this node has ended")
        self._waiting.clear()
