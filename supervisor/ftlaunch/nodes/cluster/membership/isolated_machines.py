"""Keeps count of the failures that begin on each machine, and gives the places of isolated ones to others.

The counts lie in the run dir, so that another head knows them, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ftlaunch.nodes.cluster.membership.isolation import MOST_MACHINES, Isolation
from ftlaunch.nodes.cluster.membership.roster import Member
from ftlaunch.system.file_thread import FileThread
from ftlaunch_contract.files import atomic, untrusted_json
from ftlaunch_contract.files.regular_file import open_regular

NAME = "failures.json"
_LONGEST = 1 << 20  # bytes
_SHOWN = 20  # hosts that a refusal names


class IsolatedMachines:
    """Of one job, at its head."""

    def __init__(self, limit: int, run_dir: Path, files: FileThread, say: Callable[[str], None]) -> None:
        """limit: see `--isolate-after`; 0 is off. files: writes in the run dir."""
        self._run_dir = run_dir
        self._files = files
        self._say = say
        self._isolation = Isolation(limit, read(run_dir))

    def begun(self, members: Collection[Member]) -> None:
        """An attempt has begun on those of these members that have a place."""
        self._isolation.begun({one.place: one.machine for one in members if one.place >= 0})

    def hosts(self) -> list[str]:
        """Of the running attempt, by place."""
        return [_host(machine) for machine in self._isolation.placed()]

    def blame(self, place: int, kind: str) -> None:
        """A failure of this kind has begun in a place."""
        if self._isolation.blame(place, kind):
            self._note()

    def failures(self, machine: str) -> int:
        """How many have begun on a machine."""
        return self._isolation.of(machine)

    def due(self, members: Collection[Member]) -> bool:
        """Whether an isolated member has a place that a ready standby could take."""
        self.mark(members)
        return any(standby is not None for _, standby in self._isolation.moves(members))

    def replace(self, members: Collection[Member], left: Callable[[int], None]) -> None:
        """Between two attempts: a ready standby takes an isolated member's place. left: told of each such place."""
        for member, standby in self._isolation.moves(members):
            if not self._isolation.is_news(member.machine, standby is not None):
                continue
            count = self.failures(member.machine)
            have = "failure has" if count == 1 else "failures have"
            begun = f"{count} {have} begun on node {member.place} ({_host(member.machine)}; --isolate-after)"
            if standby is None:
                self._say(f"{begun}: it keeps its place, for no other node stands by to take it")
                continue
            self._say(f"{begun}: it gets no ranks any more, and {_host(standby.machine)} takes its place")
            place = member.place
            member.place = -1
            left(place)
            standby.place = place

    def forgive(self, name: str, members: Collection[Member]) -> dict[str, Any]:
        """Answer `ftctl nodes forgive`. name: of a machine, a host, or the place that it has now."""
        known = {one.machine for one in members} | self._isolation.failures.keys()
        at = {str(one.place): {one.machine} for one in members if one.place >= 0}
        fitting = at.get(name) or {machine for machine in known if name in (machine, _host(machine))}
        if not fitting:
            hosts = ", ".join(sorted({_host(machine) for machine in known})[:_SHOWN])
            why = f"no node has that host or place; known hosts are {hosts}"
            return {"ok": False, "error": f"cannot forgive {name[:80]!r}: {why}"}
        forgiven = sum(self._isolation.forgive(machine) for machine in fitting)
        self.mark(members)
        self._note()
        hosts = ", ".join(sorted(map(_host, fitting)))
        self._say(f"failures that began on {hosts} are forgiven (ftctl; there were {forgiven}): it may get ranks again")
        return {"ok": True, "hosts": hosts, "forgiven": forgiven}

    def mark(self, members: Collection[Member]) -> None:
        """Note in members whether they are isolated."""
        for one in members:
            one.isolated = self._isolation.is_isolated(one.machine)

    def _note(self) -> None:
        path = self._run_dir / NAME
        content = json.dumps(self._isolation.failures).encode()
        self._files.write(lambda: atomic.replace_durable(path, content), self._cannot_note, replaces=NAME)

    def _cannot_note(self, error: OSError) -> None:
        self._say(f"cannot write {self._run_dir / NAME}: {error.strerror}; another head will not know of them")


def read(run_dir: Path) -> dict[str, int]:
    """Failures by machine; nothing where there is no such file, or none that can be read."""
    try:
        with open_regular(run_dir / NAME) as file:
            content = file.read(_LONGEST)
        told = untrusted_json.mapping(untrusted_json.parse(content), "it")
        found = {machine: untrusted_json.whole(number, "a number of failures") for machine, number in told.items()}
    except (OSError, ValueError):
        return {}
    return dict(list(found.items())[:MOST_MACHINES])


def _host(machine: str) -> str:
    return machine.partition("/")[0]
