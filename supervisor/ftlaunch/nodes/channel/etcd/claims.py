"""Who is the head of a job, and where it listens: the same claims as in a run dir, in etcd.

The sign of the newest head is one key. To claim a term is to write a sign of it where none of that term or a higher one
is, which is one transaction: of many that claim a term one wins. A head's later signs replace no newer head's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ftlaunch.nodes.channel.claims import Sign, refuse_commit
from ftlaunch.nodes.channel.etcd import messages
from ftlaunch.nodes.channel.etcd.client import EtcdRefused
from ftlaunch.nodes.channel.etcd.messages import GRANT, KEEP_ALIVE, RANGE, TXN

PATIENCE = 10.0
"""seconds for which claims and commits wait for etcd, which may have lost its leader"""
_LEASE = 86_400  # seconds for which a sign outlives its head
_RENEWED = 3_600.0  # seconds


class EtcdPort(Protocol):
    """See EtcdClient."""

    where: str

    def ask(self, path: str, request: Mapping[str, Any], patience: float = 0.0) -> dict[str, Any]:
        """Raises OSError."""


class EtcdClaims:
    """Of one job. Not for two threads at a time."""

    def __init__(self, etcd: EtcdPort, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._etcd = etcd
        self._key = messages.key_of(job)
        self._clock = clock
        self.where = etcd.where
        self._lease: int | None = None  # of this process's signs
        self._renewed = 0.0

    def read(self) -> Sign | None:
        """See Arbiter."""
        try:
            return self._found(0.0).sign
        except (OSError, ValueError):
            return None

    def newest(self) -> Sign | None:
        """See Arbiter."""
        return self._surely_found().sign

    def next_term(self) -> int:
        """See Arbiter. Where there is no sign any more, it is above all terms of earlier ones: each of those was
        written by a change, and terms began no higher than the number of changes.
        """
        sign, revision = self._surely_found()
        return 1 + (revision if sign is None else sign.term)

    def claim(self, sign: Sign) -> bool:
        """See Arbiter. A claim that was made, but whose answer was lost, is found when it is made again.

        It is under no lease yet: of many that claim a term only the winner needs one.
        """
        there = self._write(sign, sign.term, PATIENCE)
        return there is None or there == sign

    def show(self, sign: Sign) -> None:
        """See Arbiter."""
        self._keep_lease()
        try:
            there = self._write(sign, sign.term + 1, 0.0)
        except EtcdRefused as error:
            if error.lost:
                self._lease = None  # nobody has renewed it for so long: the next sign has another one
            raise
        if there is not None:
            refuse_commit(there)

    def newer(self, term: int) -> Sign | None:
        """See Arbiter."""
        newest = self.newest()
        return newest if newest is not None and newest.term > term else None

    def check(self, term: int) -> None:
        """See Arbiter."""
        try:
            newest = self.newest()
        except OSError as error:
            raise PermissionError(f"{self.where} cannot be asked who is the head: {error.strerror}") from None
        if newest is None:
            raise PermissionError(f"there is no sign of the head in {self.where}")
        if newest.term > term:
            refuse_commit(newest)

    def _found(self, patience: float) -> messages.Found:
        return messages.found(self._etcd.ask(RANGE, messages.read(self._key), patience))

    def _surely_found(self) -> messages.Found:
        try:
            return self._found(PATIENCE)
        except ValueError as error:
            raise EtcdRefused(str(error), self.where) from None

    def _write(self, sign: Sign, below: int, patience: float) -> Sign | None:
        """None: the sign was written; else the one that stands against it. Raises OSError."""
        request = messages.write_if_newest(self._key, sign, below, self._lease)
        try:
            return messages.newer(self._etcd.ask(TXN, request, patience))
        except ValueError as error:
            raise EtcdRefused(str(error), self.where) from None

    def _granted(self) -> int:
        try:
            return messages.granted(self._etcd.ask(GRANT, {"TTL": str(_LEASE)}))
        except ValueError as error:
            raise EtcdRefused(str(error), self.where) from None

    def _keep_lease(self) -> None:
        """The key of a job that has ended goes a day later. Raises OSError."""
        now = self._clock()
        if self._lease is None:
            self._lease = self._granted()
        elif now < self._renewed + _RENEWED:
            return
        else:
            self._etcd.ask(KEEP_ALIVE, {"ID": str(self._lease)})
        self._renewed = now
