"""Counts for how long each host ran ranks of a job, and which failures began on the host. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.history.timeline import Moment
from ftlaunch.policy.cause_kinds import NOT_THE_MACHINES

_ENDS = ("job_started", "job_finished", "job_stopped", "job_failed")


@dataclass
class HostTime:
    """Times and failures of one host, in one job or in many."""

    seconds: float = 0.0
    """time for which the host ran ranks"""
    causes: Counter[str] = field(default_factory=Counter)
    """number by class of all failures that began on the host"""
    failures: int = 0
    """number of failures that may be the machine's own; repetitions before any step count once"""

    def add(self, other: HostTime) -> None:
        """Add times and failures of the same host in another job."""
        self.seconds += other.seconds
        self.causes += other.causes
        self.failures += other.failures


class HostWatch:
    """Adds up times and failures by host from the moments of one journal, in their order."""

    def __init__(self, since: float) -> None:
        """Begin before the first moment. since: seconds since the epoch before which nothing counts."""
        self.hosts: dict[str, HostTime] = {}
        """times and failures by host; the empty name stands for an unknown host"""
        self._floor = since
        self._head = ""  # the host of the supervisor
        self._running: list[str] = []
        self._from = 0.0
        self._last_failure: tuple[str, object] | None = (
            None  # host and signature of the last failure; None once a step was made
        )

    def apply(self, moment: Moment) -> None:
        """Process the next moment."""
        if moment.event in ("attempt_started", "attempt_adopted"):
            self._stop(moment.wall)
            self._running = self._hosts_of(moment.fields)
            self._from = moment.wall
        elif moment.event in _ENDS:
            self._stop(moment.wall if moment.event != "job_started" else self._from)
            self._running = []
        elif moment.event == "incident":
            self._on_incident(moment)
        elif moment.event in ("recovered", "progress"):
            self._last_failure = None
        if moment.event == "job_started":
            self._head = _text(moment.fields.get("host"))
        elif self._running:
            self._keep(moment.wall)

    def _hosts_of(self, fields: Any) -> list[str]:
        """Return the hosts of an attempt.

        Older journals name no hosts, and have pids only for a job of one node.
        """
        hosts = fields.get("hosts")
        if isinstance(hosts, list) and hosts:
            return sorted({_text(host) for host in hosts})
        return [self._head] if "hosts" in fields or fields.get("pids") else [""]

    def _on_incident(self, moment: Moment) -> None:
        fields = moment.fields
        host = _text(fields.get("host")) or (self._running[0] if len(self._running) == 1 else "")
        previous = self._last_failure
        self._last_failure = (host, fields.get("signature"))
        if moment.wall < self._floor:
            return
        kind = _text(fields.get("kind")) or "unknown"
        found = self.hosts.setdefault(host, HostTime())
        found.causes[kind] += 1
        if (
            kind not in NOT_THE_MACHINES and self._last_failure != previous
        ):  # a repetition before any step is the same fault
            found.failures += 1

    def _keep(self, now: float) -> None:
        """Add the time up to `now` to the hosts of the attempt that runs."""
        begin = max(self._from, self._floor)
        if now > begin:
            for host in self._running:
                self.hosts.setdefault(host, HostTime()).seconds += now - begin
        self._from = max(now, self._from)

    def _stop(self, now: float) -> None:
        self._keep(now)
        self._running = []


def _text(value: object) -> str:
    return value[:253] if isinstance(value, str) else ""
