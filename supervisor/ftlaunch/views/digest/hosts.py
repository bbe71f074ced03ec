"""On which hosts a job ran for how long, and which failures began on each. Pure: moments in, numbers out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.history.timeline import Moment
from ftlaunch.policy.cause_kinds import NOT_THE_MACHINES

_ENDS = ("job_started", "job_finished", "job_stopped", "job_failed")


@dataclass
class HostTime:
    """One host, in one job or in many."""

    seconds: float = 0.0
    """in which it ran ranks"""
    causes: Counter[str] = field(default_factory=Counter)
    """classes of all failures that began on it"""
    failures: int = 0
    """those that may be the machine's own"""

    def add(self, other: HostTime) -> None:
        """Add another job's."""
        self.seconds += other.seconds
        self.causes += other.causes
        self.failures += other.failures


class HostWatch:
    """Walks along the moments of one journal."""

    def __init__(self, since: float) -> None:
        """since: seconds of the epoch; what was before does not count."""
        self.hosts: dict[str, HostTime] = {}
        """an empty name: the journal does not say which host"""
        self._floor = since
        self._head = ""  # the host of the supervisor
        self._running: list[str] = []
        self._from = 0.0
        self._same: tuple[str, object] | None = None  # host and signature of the last failure, while no step is made

    def hear(self, moment: Moment) -> None:
        """Take one moment in."""
        if moment.event in ("attempt_started", "attempt_adopted"):
            self._stop(moment.wall)
            self._running, self._from = self._hosts_of(moment.fields), moment.wall
        elif moment.event in _ENDS:
            self._stop(moment.wall if moment.event != "job_started" else self._from)
            self._running = []
        elif moment.event == "incident":
            self._on_incident(moment)
        elif moment.event in ("recovered", "progress"):
            self._same = None
        if moment.event == "job_started":
            self._head = _text(moment.fields.get("host"))
        elif self._running:
            self._keep(moment.wall)

    def _hosts_of(self, fields: Any) -> list[str]:
        """The hosts of an attempt. A journal from before hosts were told has pids only where there is one node."""
        hosts = fields.get("hosts")
        if isinstance(hosts, list) and hosts:
            return sorted({_text(host) for host in hosts})
        return [self._head] if "hosts" in fields or fields.get("pids") else [""]

    def _on_incident(self, moment: Moment) -> None:
        fields = moment.fields
        host = _text(fields.get("host")) or (self._running[0] if len(self._running) == 1 else "")
        same, self._same = self._same, (host, fields.get("signature"))
        if moment.wall < self._floor:
            return
        kind, found = _text(fields.get("kind")) or "unknown", self.hosts.setdefault(host, HostTime())
        found.causes[kind] += 1
        if kind not in NOT_THE_MACHINES and self._same != same:  # the same again before any step: one fault, not two
            found.failures += 1

    def _keep(self, now: float) -> None:
        """The attempt has run until now."""
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
