"""Reads torch's flight recorders: which collectives ranks have entered, and which they have not. Pure.

The recorder numbers the collectives of a process group from 1, on every rank alike. Its JSON is described in torch's
"Flight Recorder for debugging stuck jobs"; versions differ, so whatever is not as expected is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KEPT = 32  # newest entries of each group


@dataclass(frozen=True)
class Collective:
    """One entry of the recorder."""

    group: str
    number: int
    name: str  # all_reduce
    sizes: str
    over: bool

    def __str__(self) -> str:
        """`all_reduce #1237`."""
        return f"{self.name} #{self.number}"


@dataclass(frozen=True)
class FlightRecord:
    """What one rank's recorder holds."""

    entries: tuple[Collective, ...] = ()
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of a group, where that is known

    def newest(self, group: str) -> int:
        """The newest collective of a group that this rank has entered; 0: none."""
        return max((entry.number for entry in self.entries if entry.group == group), default=0)

    @property
    def pending(self) -> Collective | None:
        """The oldest collective that it has entered and that is not over."""
        return next((entry for entry in self.entries if not entry.over), None)

    def find(self, group: str, number: int) -> Collective | None:
        """The entry of a collective; None where it is not kept."""
        return next((e for e in self.entries if (e.group, e.number) == (group, number)), None)


def kept(dump: Mapping[str, Any]) -> dict[str, Any]:
    """A recorder's dump with the newest entries of each group, and those that are not over."""
    entries = dump.get("entries")
    entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(_group(entry), []).append(entry)
    newest = [id(e) for of_group in groups.values() for e in of_group[-KEPT:]]
    return {**dump, "entries": [e for e in entries if id(e) in newest or not _over(e)]}


def read(dump: Mapping[str, Any]) -> FlightRecord:
    """A recorder's dump, as parsed from JSON."""
    entries = []
    for entry in dump.get("entries", ()):
        number = entry.get("collective_seq_id")
        if not isinstance(number, int) or entry.get("is_p2p"):
            continue
        name = str(entry.get("profiling_name", "collective")).rpartition(":")[2]
        entries.append(Collective(_group(entry), number, name, str(entry.get("input_sizes", "")), _over(entry)))
    return FlightRecord(tuple(entries), _members(dump.get("pg_config")))


def _group(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    return str(group[0]) if isinstance(group, list) and group else ""


def _over(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = str(group.get("ranks", "")) if isinstance(group, dict) else ""
        numbers = [word.strip() for word in ranks.strip("[]").split(",")]
        if all(number.isdigit() for number in numbers):
            found[str(name)] = tuple(int(number) for number in numbers)
    return found


# --- several ranks --------------------------------------------------------------------------------------------


def behind(flights: Mapping[int, FlightRecord]) -> set[int]:
    """The ranks that have not entered a collective which another is in, and are themselves in none."""
    found = set()
    for flight in flights.values():
        awaited = flight.pending
        if awaited is not None:
            found |= {r for r in absent(awaited, flights) if flights[r].pending is None}
    return found


def absent(awaited: Collective, flights: Mapping[int, FlightRecord]) -> list[int]:
    """The ranks of its group, of those known, that have not entered a collective."""
    return [
        rank
        for rank, flight in flights.items()
        if flight.newest(awaited.group) < awaited.number and _belongs(rank, awaited.group, flights)
    ]


def mismatched(rank: int, flights: Mapping[int, FlightRecord]) -> tuple[int, Collective, Collective] | None:
    """Another rank, its collective, and that of `rank` under the same number of the same group: they are not alike."""
    mine = flights[rank].pending if rank in flights else None
    if mine is None:
        return None
    for other, flight in flights.items():
        theirs = flight.find(mine.group, mine.number)
        if theirs is not None and not _alike(mine, theirs):
            return other, theirs, mine
    return None


def _alike(one: Collective, other: Collective) -> bool:
    """Whether two ranks are in the same collective. Only all_reduce needs equal sizes on all ranks."""
    return one.name == other.name and (one.sizes == other.sizes or one.name != "all_reduce")


def crossed(rank: int, flights: Mapping[int, FlightRecord]) -> tuple[int, Collective, Collective] | None:
    """Another rank that waits, in another group, for `rank`, which waits for it; its collective, and that of `rank`."""
    mine = flights[rank].pending if rank in flights else None
    if mine is None:
        return None
    for other in absent(mine, flights):
        theirs = flights[other].pending
        if theirs is not None and theirs.group != mine.group and rank in absent(theirs, flights):
            return other, theirs, mine
    return None


def _belongs(rank: int, group: str, flights: Mapping[int, FlightRecord]) -> bool:
    """Whether a rank belongs to a group: it has used it, or the recorder lists it. All ranks belong to group 0."""
    if group == "0" or flights[rank].newest(group) > 0:
        return True
    members = [flight.members[group] for flight in flights.values() if group in flight.members]
    # gloo's recorder lists no members; a group of one rank never waits, so of two ranks both belong
    return rank in members[0] if members else len(flights) == 2


def waiting_in(flights: Mapping[int, FlightRecord], ranks: Sequence[int]) -> Collective | None:
    """The collective that all of `ranks` are in, if there is one."""
    first = flights[ranks[0]].pending if ranks and ranks[0] in flights else None
    if first is None or any(r not in flights or flights[r].pending != first for r in ranks):
        return None
    return first
