"""The head says that it lives, in the run dir or in etcd.

That is a thread's work: storage that does not answer must not hold the head up.
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

PERIOD = 0.25
"""seconds between two signs"""


class Deposed(Exception):
    """Another head has taken over; the message is a sentence."""


class SignOfLife:
    """Of one head."""

    def __init__(self, claims: Arbiter, sign: Sign) -> None:
        """sign: as it was shown when the term was claimed."""
        self.claims, self.sign = claims, sign
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """is readable once another head has a higher term"""
        self._shown = time.monotonic()  # when the newest sign that was shown was begun
        self._held_until = 0.0
        self._newer: Sign | None = None  # of the head that has taken over
        self._end, self._hurry = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="sign of life", daemon=True)
        self._thread.start()

    def age(self) -> float:
        """Seconds since whoever reads its sign has last seen the head, at the least; endless while held back."""
        now = time.monotonic()
        return math.inf if now < self._held_until else now - self._shown

    def look_now(self) -> None:
        """See at once whether another head has taken over, and show a sign if none has."""
        self._hurry.set()

    @property
    def shown(self) -> float:
        """When the newest look was begun that has found no other head: monotonic seconds."""
        return self._shown

    def hold_back(self, seconds: float) -> None:
        """Show no sign for a while: whoever can reach more nodes than this head is to take its place."""
        self._held_until = time.monotonic() + seconds

    def raise_deposed(self) -> None:
        """Raises Deposed."""
        newest = self._newer
        assert newest is not None
        where = f"at {newest.address} port {newest.port}"
        raise Deposed(f"another head has taken over the job {where}: this one ends, and its nodes go there")

    def close(self, code: int) -> None:
        """The job is over: whoever has lost this head finds the exit code in the run dir."""
        self._end.set()
        self._hurry.set()
        self._thread.join(PERIOD)
        if not self._thread.is_alive():  # storage that does not answer is not touched
            with contextlib.suppress(OSError):
                self._show(code)
        os.close(self.fd)

    def _run(self) -> None:
        while True:
            self._hurry.wait(PERIOD)
            self._hurry.clear()
            if self._end.is_set():
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
            except OSError:  # its age says so
                continue
            self._shown = begun

    def _show(self, over: int) -> None:
        self.sign = replace(self.sign, count=self.sign.count + 1, over=over)
        self.claims.show(self.sign)
