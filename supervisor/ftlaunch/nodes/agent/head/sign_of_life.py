"""The head's sign of life, for the arbiter: shown again and again while no newer head has claimed a term.

A thread of its own does this, because storage that does not answer must not delay the head. The head's event loop calls
the public methods and watches `SignOfLife.fd`.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from dataclasses import replace

from ftlaunch.nodes.channel.arbiter import Arbiter
from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.channel.votes.claims import VotedClaims, Wanted
from ftlaunch.nodes.channel.votes.records import Record, Voter

PERIOD_SECONDS = 0.25
"""seconds between two signs"""


class Deposed(Exception):
    """Another head has taken over. The message is a sentence for the terminal."""


class SignOfLife:
    """Shows the sign of life of this head, and learns whether another head has taken over."""

    def __init__(self, claims: Arbiter, sign: Sign) -> None:
        """Start the thread.

        Args:
            claims: where signs are shown.
            sign: the sign with which this head has claimed its term.

        Raises:
            OSError: there is no descriptor left.
            RuntimeError: no thread can be started.
        """
        self.claims = claims
        self.sign = sign
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """readable once another head has a higher term"""
        self._shown_at = time.monotonic()  # when the write of the newest shown sign was begun
        self._held_until = 0.0
        self._newer: Sign | None = None  # the sign of the head that has taken over
        self._wanted: Wanted | None = None  # the voters that the head wants
        self._ending = threading.Event()
        self._wakeup = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sign of life", daemon=True)
        self._thread.start()

    def age_seconds(self) -> float:
        """Return how many seconds ago other nodes may last have seen a new sign; infinite while signs are held back."""
        now = time.monotonic()
        return math.inf if now < self._held_until else now - self._shown_at

    def check_now(self) -> None:
        """Have the thread check at once whether another head has taken over, and show a sign if none has."""
        self._wakeup.set()

    @property
    def shown_at(self) -> float:
        """When the newest check was begun that found no other head, in monotonic seconds."""
        return self._shown_at

    def hold_back(self, seconds: float) -> None:
        """Show no sign for `seconds`, so that a node that reaches more nodes than this head can take over."""
        self._held_until = time.monotonic() + seconds

    def want_voters(self, voters: tuple[Voter, ...], own: Voter, others: tuple[Voter, ...]) -> None:
        """Have the thread make these nodes the voters that say who the head is, as soon as a majority agrees.

        Args:
            voters: the voters.
            own: the voter of this machine.
            others: those of other nodes, which have no vote, and are told who the voters are.
        """
        self._wanted = Wanted(voters, own, others)

    @property
    def record(self) -> Record | None:
        """What this head has shown to a majority of the voters, also while they change; None if there are none."""
        return self.claims.record if isinstance(self.claims, VotedClaims) else None

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voters that say who the head is, as a majority of them knows; empty if there are none, or they change."""
        record = self.record
        return () if record is None or record.joining else record.voters

    def raise_deposed(self) -> None:
        """Report the head that has taken over. Call this once `fd` is readable.

        Raises:
            Deposed: always.
        """
        newest = self._newer
        assert newest is not None
        where = f"at {newest.address} port {newest.port}"
        raise Deposed(f"another head has taken over the job {where}: this one ends, and its nodes go there")

    def close(self, code: int) -> None:
        """End the thread, and show the job's exit code to nodes that have lost this head."""
        self._ending.set()
        self._wakeup.set()
        self._thread.join(PERIOD_SECONDS)
        if not self._thread.is_alive():  # else storage does not answer, and a write would block the head
            with contextlib.suppress(OSError):
                self._show(code)
        os.close(self.fd)

    def _run(self) -> None:
        while True:
            self._wakeup.wait(PERIOD_SECONDS)
            self._wakeup.clear()
            if self._ending.is_set():
                return
            begun = time.monotonic()
            try:
                newer = self.claims.newer(self.sign.term)
                if newer is not None:
                    self._newer = newer
                    os.eventfd_write(self.fd, 1)
                    return
                if begun < self._held_until:
                    continue
                self._show(self.sign.over)
            except OSError:  # the growing age of the sign shows that storage fails
                continue
            self._shown_at = begun
            if isinstance(self.claims, VotedClaims):
                with contextlib.suppress(OSError):  # it is tried again after the next sign
                    self.claims.change_voters(self._wanted, lambda: self._count(self.sign.over))

    def _show(self, over: int) -> None:
        self.claims.show(self._count(over))

    def _count(self, over: int) -> Sign:
        """Return the next sign of life."""
        self.sign = replace(self.sign, count=self.sign.count + 1, over=over)
        return self.sign
