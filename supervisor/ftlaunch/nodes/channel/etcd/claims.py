"""The arbiter in etcd: says which process is the head of a job, and where the head listens.

The sign of the newest head is one key. A claim is one transaction that writes a sign only if the key holds no sign of
the same or a higher term. Therefore exactly one process wins a term, and a head never overwrites the sign of a newer
one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ftlaunch.nodes.channel.claims import Sign, refuse_commit
from ftlaunch.nodes.channel.etcd import messages
from ftlaunch.nodes.channel.etcd.client import EtcdClient, EtcdRefused
from ftlaunch.nodes.channel.etcd.messages import GRANT, KEEP_ALIVE, RANGE, TXN
from ftlaunch.spec.meeting_stores.etcd import EtcdSpec

PATIENCE_SECONDS = 10.0
"""seconds for which claims and commits wait for etcd, which may have lost its leader"""
_LEASE_SECONDS = 86_400  # for which a sign outlives its head
_RENEW_SECONDS = 3_600.0  # between two renewals of the lease


class EtcdPort(Protocol):
    """What `EtcdClaims` needs of an EtcdClient; the simulation has one of its own."""

    where: str
    """names etcd, for people"""

    def ask(self, path: str, request: Mapping[str, Any], patience_seconds: float = 0.0) -> dict[str, Any]:
        """Return etcd's answer to a request.

        Args:
            path: the path of the JSON gateway.
            request: the body.
            patience_seconds: seconds for which failures are retried.

        Raises:
            OSError: there is no answer, or etcd refuses the request.
        """


class EtcdClaims:
    """The arbiter of one job, for one thread at a time."""

    def __init__(self, etcd: EtcdPort, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._etcd = etcd
        self._key = messages.key_of(job)
        self._clock = clock
        self.where = etcd.where
        self._lease: int | None = None  # the lease of this process's signs
        self._renewed = 0.0  # when the lease was last renewed

    def read(self) -> Sign | None:
        """Return the newest sign, or None if there is none or etcd does not answer."""
        try:
            return self._find(0.0).sign
        except (OSError, ValueError):
            return None

    def newest(self) -> Sign | None:
        """Return the newest sign, or None if there is none.

        Raises:
            OSError: etcd does not answer, or refuses.
        """
        return self._find_patiently().sign

    def next_term(self) -> int:
        """Return the term after all claimed ones.

        Without a sign, the term follows etcd's revision, its number of changes. Each earlier term was written by a
        change, and started no higher than the revision of its time; so the result is above all earlier terms.

        Raises:
            OSError: etcd does not answer, or refuses.
        """
        sign, revision = self._find_patiently()
        return 1 + (revision if sign is None else sign.term)

    def claim(self, sign: Sign) -> bool:
        """Claim the term of `sign` and show the sign.

        A repeated claim finds its own sign if the first answer was lost. The claim has no lease yet, because only the
        winner needs one.

        Returns:
            False if another process has claimed this term or a higher one.

        Raises:
            OSError: etcd does not answer, or refuses.
        """
        there = self._write(sign, sign.term, PATIENCE_SECONDS)
        return there is None or there == sign

    def show(self, sign: Sign) -> None:
        """Replace the sign of life by `sign`.

        Raises:
            OSError: etcd does not answer, or refuses. PermissionError: a newer head has taken over.
        """
        self._keep_lease()
        try:
            there = self._write(sign, sign.term + 1, 0.0)
        except EtcdRefused as error:
            if error.lost:
                self._lease = None  # the lease has expired: the next sign gets a new one
            raise
        if there is not None:
            refuse_commit(there)

    def newer(self, term: int) -> Sign | None:
        """Return the sign of a head with a term above `term`, or None if there is no such head.

        Raises:
            OSError: etcd does not answer, or refuses.
        """
        newest = self.newest()
        return newest if newest is not None and newest.term > term else None

    def check(self, term: int) -> None:
        """Check that the head of `term` still leads.

        Raises:
            PermissionError: a head of a higher term has claimed the job, there is no sign, or etcd does not answer or
                refuses.
        """
        try:
            newest = self.newest()
        except OSError as error:
            raise PermissionError(f"{self.where} cannot be asked who is the head: {error.strerror}") from None
        if newest is None:
            raise PermissionError(f"there is no sign of the head in {self.where}")
        if newest.term > term:
            refuse_commit(newest)

    def _find(self, patience_seconds: float) -> messages.Found:
        return messages.parse_found(self._etcd.ask(RANGE, messages.build_read(self._key), patience_seconds))

    def _find_patiently(self) -> messages.Found:
        """Return what the key holds. Wait for etcd for PATIENCE_SECONDS. Raises OSError."""
        try:
            return self._find(PATIENCE_SECONDS)
        except ValueError as error:
            raise EtcdRefused(str(error), self.where) from None

    def _write(self, sign: Sign, below: int, patience_seconds: float) -> Sign | None:
        """Write a sign unless the key holds a sign with a term of at least `below`.

        Returns:
            None if the sign was written, else the sign that the key holds.

        Raises:
            OSError: etcd does not answer, or refuses.
        """
        request = messages.build_write_if_newest(key=self._key, sign=sign, below=below, lease=self._lease)
        try:
            return messages.parse_newer(self._etcd.ask(TXN, request, patience_seconds))
        except ValueError as error:
            raise EtcdRefused(str(error), self.where) from None

    def _grant_lease(self) -> int:
        """Return a new lease. Raises OSError."""
        try:
            return messages.parse_lease(self._etcd.ask(GRANT, {"TTL": str(_LEASE_SECONDS)}))
        except ValueError as error:
            raise EtcdRefused(str(error), self.where) from None

    def _keep_lease(self) -> None:
        """Get or renew the lease, so that the key of a job that has ended disappears a day later.

        Raises:
            OSError: etcd does not answer, or refuses.
        """
        now = self._clock()
        if self._lease is None:
            self._lease = self._grant_lease()
        elif now < self._renewed + _RENEW_SECONDS:
            return
        else:
            self._etcd.ask(KEEP_ALIVE, {"ID": str(self._lease)})
        self._renewed = now


def open_claims(fields: Mapping[str, Any], job: str) -> EtcdClaims:
    """Return the arbiter of a job in the etcd that `EtcdSpec.fields` described. Nothing is asked of etcd yet."""
    return EtcdClaims(EtcdClient(EtcdSpec.from_fields(fields)), job)
