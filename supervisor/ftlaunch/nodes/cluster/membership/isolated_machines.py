"""Counts the failures that begin on each machine, and gives the places of isolated machines to standbys.

The counts are stored in the run dir, so that a next head knows them. Runs in the head's event loop; a thread of its own
writes the file.
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
_LONGEST_FILE = 1 << 20  # bytes
_MOST_SHOWN = 20  # hosts that a refusal names


class IsolatedMachines:
    """The machines of one job, at its head."""

    def __init__(self, limit: int, run_dir: Path, files: FileThread, say: Callable[[str], None]) -> None:
        """Begin with the counts in the run dir.

        Args:
            limit: failures after which a machine is isolated (`--isolate-after`); 0 for never.
            run_dir: the run dir.
            files: the thread that writes in the run dir.
            say: writes a sentence to the terminal.
        """
        self._run_dir = run_dir
        self._files = files
        self._say = say
        self._isolation = Isolation(limit, read(run_dir))

    def begin_attempt(self, members: Collection[Member]) -> None:
        """Note that an attempt has begun on the members that have a place."""
        self._isolation.begin_attempt({member.place: member.machine for member in members if member.place >= 0})

    def hosts(self) -> list[str]:
        """Return the host names of the running attempt, by place."""
        return [_host(machine) for machine in self._isolation.placed()]

    def blame(self, place: int, kind: str) -> None:
        """Count a failure that has begun in a place. kind: the kind of its cause."""
        if self._isolation.blame(place, kind):
            self._write()

    def failures(self, machine: str) -> int:
        """Return the number of failures that have begun on a machine."""
        return self._isolation.of(machine)

    def due(self, members: Collection[Member]) -> bool:
        """Return whether an isolated member has a place that a ready standby can take."""
        self.mark(members)
        return any(standby is not None for _, standby in self._isolation.moves(members))

    def replace(self, members: Collection[Member], left: Callable[[int], None]) -> None:
        """Give the places of isolated members to ready standbys, between two attempts.

        Args:
            members: all members.
            left: called with each place that gets another node.
        """
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
        """Reset the counts of machines, for `ftctl nodes forgive`.

        Args:
            name: a machine, a host, or a place that a node has now.
            members: all members.

        Returns:
            The answer to the request.
        """
        known = {member.machine for member in members} | self._isolation.failures.keys()
        by_place = {str(member.place): {member.machine} for member in members if member.place >= 0}
        fitting = by_place.get(name) or {machine for machine in known if name in (machine, _host(machine))}
        if not fitting:
            hosts = ", ".join(sorted({_host(machine) for machine in known})[:_MOST_SHOWN])
            why = f"no node has that host or place; known hosts are {hosts}"
            return {"ok": False, "error": f"cannot forgive {name[:80]!r}: {why}"}
        forgiven = sum(self._isolation.forgive(machine) for machine in fitting)
        self.mark(members)
        self._write()
        hosts = ", ".join(sorted(map(_host, fitting)))
        self._say(f"failures that began on {hosts} are forgiven (ftctl; there were {forgiven}): it may get ranks again")
        return {"ok": True, "hosts": hosts, "forgiven": forgiven}

    def mark(self, members: Collection[Member]) -> None:
        """Set `isolated` of each member."""
        for member in members:
            member.isolated = self._isolation.is_isolated(member.machine)

    def _write(self) -> None:
        path = self._run_dir / NAME
        content = json.dumps(self._isolation.failures).encode()
        self._files.write(lambda: atomic.replace_durable(path, content), self._cannot_note, replaces=NAME)

    def _cannot_note(self, error: OSError) -> None:
        self._say(f"cannot write {self._run_dir / NAME}: {error.strerror}; another head will not know of them")


def read(run_dir: Path) -> dict[str, int]:
    """Return the failures by machine, or nothing if there is no file that can be read."""
    try:
        with open_regular(run_dir / NAME) as file:
            content = file.read(_LONGEST_FILE)
        counts = untrusted_json.mapping(untrusted_json.parse(content), "it")
        found = {machine: untrusted_json.whole(number, "a number of failures") for machine, number in counts.items()}
    except (OSError, ValueError):
        return {}
    return dict(list(found.items())[:MOST_MACHINES])


def _host(machine: str) -> str:
    return machine.partition("/")[0]
