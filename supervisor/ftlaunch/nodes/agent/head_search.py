"""Looks for the head in the run dir, or in etcd, while it is not heard, and has another one started where it is gone.

Storage may not answer: what waits for it is the starter's process.
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
    """Of one agent."""

    def __init__(
        self, order: Order, clock: Callable[[], float], machine: str, stale: float, *, quiet_seconds: float = QUIET,
        in_etcd: bool = False,
    ) -> None:  # fmt: skip
        """Begin without a head.

        Args:
            order: sends an order to the starter, whose answers come to `on_answer`.
            clock: monotonic seconds.
            machine: see `this_machine`.
            stale: see Takeover.
            quiet_seconds: without a word from the head, after which its sign of life is looked at.
            in_etcd: the first head, too, is found by its sign, and any node may start it.
        """
        self._order, self._clock, self._machine = order, clock, machine
        self._takeover = Takeover(stale)
        self._quiet_seconds = quiet_seconds
        self._heard, self._has_heard = clock(), False
        self._in_etcd, self._found_none = in_etcd, False
        self.unusable = False
        """no head can be started with this node's settings, which was said"""
        self._waiting: deque[tuple[bytes, float]] = deque()  # orders that are not answered yet, and when they were sent
        self._answered = -inf  # when the newest look that was answered was begun

    @property
    def sign(self) -> Sign | None:
        """The newest sign of a head that was seen."""
        return self._takeover.sign

    @property
    def alive(self) -> bool:
        """Whether the head that shows it was seen to live."""
        return self._takeover.alive

    @property
    def looked(self) -> float:
        """When the newest look at the sign was begun that has found no newer one."""
        return self._takeover.looked

    def hear(self, now: float) -> None:
        """The head has said something."""
        self._heard, self._has_heard = now, True

    def look(self, now: float, place: int) -> None:
        """Look at the sign while the head is not heard. place: of this node, or -1."""
        begins = self._in_etcd and not self._has_heard
        if self._waiting or (now - self._heard < self._quiet_seconds and not begins):
            return
        if begins and self._found_none:
            self._found_none = False
            self._send(START, now)
            return
        sign = self.sign
        at_home = sign is not None and sign.machine == self._machine
        due = self._takeover.is_due(self._heard, place, at_home=at_home)
        self._send(TAKE_OVER if due else LOOK, now)

    def has_looked_since(self, moment: float) -> bool:
        """Whether a look that was begun since has been answered, so that `sign` counts; else one is begun."""
        if self._answered < moment and not self._waiting:
            self._send(LOOK, self._clock())
        return self._answered >= moment

    def start_head(self) -> None:
        """Nobody listens on this machine where the head is to be."""
        if not self._waiting:
            self._send(SUCCEED if self._has_heard else START, self._clock())

    def on_answer(self, answer: dict[str, Any]) -> None:
        """The starter has answered an order."""
        order, sent = self._waiting.popleft()
        if order == LOOK:
            self._answered = sent
            sign = of_fields(answer["sign"])
            self._found_none = sign is None or sign.ended
            self._takeover.note(sign, sent, self._clock())
        elif order == TAKE_OVER:  # a head was started, which will show its sign, or another node was first
            self._takeover.forget_time(self._clock())
        else:
            self.unusable = answer["head"] == UNUSABLE

    def forget_orders(self) -> None:
        """The starter was killed: nobody answers the orders under way any more."""
        self._waiting.clear()

    def _send(self, order: bytes, now: float) -> None:
        self._waiting.append((order, now))
        self._order(order)
