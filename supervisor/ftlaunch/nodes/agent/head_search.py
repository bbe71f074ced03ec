"""Searches for the head by its sign of life while the agent hears no head, and has a lost head replaced.

The sign lies in the run dir or in a meeting store. Runs in the agent's event loop and never waits for storage: the
starter's process reads the sign. The decision to replace a head is `Takeover`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from ftlaunch.nodes.agent.head.starter import LOOK, START, SUCCEED, TAKE_OVER, UNUSABLE
from ftlaunch.nodes.agent.takeover import QUIET, Takeover
from ftlaunch.nodes.channel.claims import Sign, of_fields

Order = Callable[[bytes], None]


class HeadSearch:
    """An agent's search for the head."""

    def __init__(
        self,
        order: Order,
        clock: Callable[[], float],
        machine: str,
        stale: float,
        *,
        quiet_seconds: float = QUIET,
        in_store: bool = False,
    ) -> None:
        """Begin without a head.

        Args:
            order: sends an order to the starter, whose answers come to `on_answer`.
            clock: monotonic seconds.
            machine: this machine, as `this_machine` names it.
            stale: seconds without a new sign after which a head may be replaced.
            quiet_seconds: seconds without a message from the head after which its sign of life is read.
            in_store: whether the first head is also found by its sign, and any node may start that head.
        """
        self._order = order
        self._clock = clock
        self._machine = machine
        self._takeover = Takeover(stale)
        self._quiet_seconds = quiet_seconds
        self._heard = clock()
        self._has_heard = False
        self._in_store = in_store
        self._found_none = False  # the last look has found no head of a job that goes on
        self.unusable = False
        """whether no head can run with this node's settings, which the terminal was told"""
        self._waiting: deque[tuple[bytes, float]] = deque()  # unanswered orders, and when each was sent
        self._answered = -inf  # when the newest answered look was begun

    @property
    def sign(self) -> Sign | None:
        """The newest known sign of a head."""
        return self._takeover.sign

    @property
    def alive(self) -> bool:
        """Whether the head of the newest sign has shown another sign while this agent was searching."""
        return self._takeover.alive

    @property
    def looked(self) -> float:
        """When the newest look was begun that found `sign` to be the newest one, in monotonic seconds."""
        return self._takeover.looked

    def hear(self, now: float) -> None:
        """Record that a message of the head has come."""
        self._heard = now
        self._has_heard = True

    def look(self, now: float, place: int) -> None:
        """Order a look at the sign, or a takeover, if the head has been silent for long enough.

        Args:
            now: monotonic seconds.
            place: the place of this node in the job, or -1.
        """
        is_first = self._in_store and not self._has_heard
        if self._waiting or (now - self._heard < self._quiet_seconds and not is_first):
            return
        if is_first and self._found_none:
            self._found_none = False
            self._send(START, now)
            return
        sign = self.sign
        at_home = sign is not None and sign.machine == self._machine
        due = self._takeover.is_due(self._heard, place, at_home=at_home)
        self._send(TAKE_OVER if due else LOOK, now)

    def has_looked_since(self, moment: float) -> bool:
        """Return whether `sign` is at least as new as `moment`. If not, order a look at the sign."""
        if self._answered < moment and not self._waiting:
            self._send(LOOK, self._clock())
        return self._answered >= moment

    def start_head(self) -> None:
        """Have a head started, because nobody listens at the head's endpoint on this machine."""
        if not self._waiting:
            self._send(SUCCEED if self._has_heard else START, self._clock())

    def on_answer(self, answer: dict[str, Any]) -> None:
        """Take the starter's answer to the oldest unanswered order."""
        order, sent = self._waiting.popleft()
        if order == LOOK:
            self._answered = sent
            sign = of_fields(answer["sign"])
            self._found_none = sign is None or sign.ended
            self._takeover.note(sign, sent, self._clock())
        elif order == TAKE_OVER:  # a new head will show its sign, or another node was faster
            self._takeover.forget_time(self._clock())
        else:
            self.unusable = answer["head"] == UNUSABLE

    def forget_orders(self) -> None:
        """Forget the unanswered orders, because the starter was killed."""
        self._waiting.clear()

    def _send(self, order: bytes, now: float) -> None:
        self._waiting.append((order, now))
        self._order(order)
