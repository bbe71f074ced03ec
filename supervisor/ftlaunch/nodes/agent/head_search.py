"""Searches for the head by its sign of life while the agent gets no message of a head, and has a lost head replaced.

The head is the process that supervises all nodes of a job; each node has an agent, which runs the node's ranks. The
running head writes a sign of life again and again: `Sign`, with the head's term, machine and address. The sign lies in
the run dir, or in a meeting store: a service such as etcd that the job names instead (`nodes.store` of the job spec).

This module runs in the agent's event loop and never waits for storage. The starter does: a process that the agent has
forked (head/starter.py) and that obeys orders. The starter reads the sign (READ_SIGN), and starts heads (START,
SUCCEED, TAKE_OVER). One order is under way at a time. `Takeover` decides when to replace a head.

All times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from ftlaunch.nodes.agent.head.starter import READ_SIGN, START, SUCCEED, TAKE_OVER, UNUSABLE
from ftlaunch.nodes.agent.takeover import QUIET_SECONDS, Takeover
from ftlaunch.nodes.channel.claims import Sign, of_fields

OrderSender = Callable[[bytes], None]
"""Sends an order to the starter: START, SUCCEED, TAKE_OVER or READ_SIGN."""


class HeadSearch:
    """An agent's search for the head."""

    def __init__(
        self,
        send_order: OrderSender,
        clock: Callable[[], float],
        machine: str,
        stale_seconds: float,
        *,
        quiet_seconds: float = QUIET_SECONDS,
        in_store: bool = False,
    ) -> None:
        """Begin without a head.

        Args:
            send_order: sends an order to the starter, whose answers come to `on_answer`.
            clock: monotonic seconds.
            machine: this machine, as `this_machine` names it.
            stale_seconds: seconds without a new sign after which a head may be replaced.
            quiet_seconds: seconds without a message from the head after which its sign of life is read.
            in_store: whether the sign lies in a meeting store. Then the first head is also found by its sign, and any
                node may start that head.
        """
        self._send_order = send_order
        self._clock = clock
        self._machine = machine
        self._takeover = Takeover(stale_seconds)
        self._quiet_seconds = quiet_seconds
        self._last_message_at = clock()
        self._has_met_head = False
        self.in_store = in_store
        """whether the sign lies in a meeting store"""
        self.may_replace_head = True
        """whether this node may start a head in place of one that is gone: the sign that it reads is that head's"""
        self._found_none = False  # the last answered read has found no head of a job that goes on
        self.unusable = False
        """whether no head can run with this node's settings, which was reported on the terminal"""
        self._unanswered: deque[tuple[bytes, float]] = deque()  # orders, and when each was sent
        self._answered_read_at = -inf  # when the newest answered read was ordered

    @property
    def sign(self) -> Sign | None:
        """The newest known sign of a head."""
        return self._takeover.sign

    @property
    def alive(self) -> bool:
        """Whether the head of the newest sign has shown another sign while this agent was searching."""
        return self._takeover.alive

    @property
    def read_at(self) -> float:
        """When the newest read was ordered that found `sign` to be the newest one; 0 before the first."""
        return self._takeover.read_at

    def record_message(self, now: float) -> None:
        """Record that a message of the head came at `now`, in monotonic seconds."""
        self._last_message_at = now
        self._has_met_head = True

    def poll(self, now: float, place: int) -> None:
        """Order a read of the sign, or a takeover, if the head has been silent for long enough.

        In a meeting store this also orders reads before the first head was met, and the start of a head if a read has
        found none. Nothing is ordered while an order is unanswered.

        Args:
            now: monotonic seconds.
            place: the place of this node in the job, or -1.
        """
        is_first = self.in_store and not self._has_met_head
        if self._unanswered or (now - self._last_message_at < self._quiet_seconds and not is_first):
            return
        if is_first and self._found_none:
            self._found_none = False
            self._send(START, now)
            return
        sign = self.sign
        at_home = sign is not None and sign.machine == self._machine
        due = self.may_replace_head and self._takeover.is_due(self._last_message_at, place, at_home=at_home)
        self._send(TAKE_OVER if due else READ_SIGN, now)

    def ensure_read_since(self, moment: float) -> bool:
        """Order a read of the sign, unless one that was ordered at or after `moment` has been answered.

        Args:
            moment: monotonic seconds.

        Returns:
            Whether such a read has been answered. Its sign may be older than `moment`.
        """
        if self._answered_read_at < moment and not self._unanswered:
            self._send(READ_SIGN, self._clock())
        return self._answered_read_at >= moment

    def start_head(self) -> None:
        """Order the start of a head, because nobody listens at the head's endpoint on this machine.

        The order is SUCCEED if this agent has met a head (the new head takes the place of the one that listened
        here), otherwise START. Nothing is ordered while an order is unanswered, nor after this agent has met a head
        that it may not replace.
        """
        if not self._unanswered and (self.may_replace_head or not self._has_met_head):
            self._send(SUCCEED if self._has_met_head else START, self._clock())

    def on_answer(self, answer: dict[str, Any]) -> None:
        """Process the starter's answer to the oldest unanswered order.

        Args:
            answer: to READ_SIGN: `sign`, the fields of the newest sign, or an empty mapping. To any other order:
                `head`, the pid of the started head, 0 without one, or UNUSABLE.

        Raises:
            IndexError: no order is unanswered.
        """
        order, sent = self._unanswered.popleft()
        if order == READ_SIGN:
            self._answered_read_at = sent
            sign = of_fields(answer["sign"])
            self._found_none = sign is None or sign.ended
            self._takeover.record_sign(sign, sent, self._clock())
        elif order == TAKE_OVER:  # a new head will show its sign, or another node was faster
            self._takeover.restart_wait(self._clock())
        else:
            self.unusable = answer["head"] == UNUSABLE

    def forget_sign(self) -> None:
        """Forget the newest sign, because its head has given way to one with terms of its own."""
        self._takeover = Takeover(self._takeover.stale_seconds)

    def forget_orders(self) -> None:
        """Forget the unanswered orders, because the starter was killed."""
        self._unanswered.clear()

    def _send(self, order: bytes, now: float) -> None:
        self._unanswered.append((order, now))
        self._send_order(order)
