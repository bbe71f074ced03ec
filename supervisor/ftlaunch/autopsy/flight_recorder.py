"""Parses the dumps of torch's flight recorders, and compares which collectives the ranks have entered. Pure.

The recorder numbers the collectives of a process group from 1, in the same way on every rank. torch's "Flight Recorder
for debugging stuck jobs" describes the JSON. Versions of torch differ, so that unexpected values are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftlaunch_contract.files import untrusted_json

KEPT = 32  # newest entries of each group that a dump keeps


@dataclass(frozen=True)
class Collective:
    """One entry of a recorder: a collective that the rank has entered."""

    group: str  # name of the process group; "0" is the group of all ranks
    number: int  # within the group, from 1
    name: str  # all_reduce
    sizes: str  # of the input tensors, as the recorder writes them
    over: bool  # the collective has ended on this rank

    def __str__(self) -> str:
        """`all_reduce #1237`."""
        return f"{self.name} #{self.number}"


@dataclass(frozen=True)
class FlightRecord:
    """The contents of one rank's recorder."""

    entries: tuple[Collective, ...] = ()  # oldest first
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # ranks of each group that the recorder lists

    def newest(self, group: str) -> int:
        """Return the number of the newest collective of a group that this rank has entered; 0 if there is none."""
        return max((entry.number for entry in self.entries if entry.group == group), default=0)

    @property
    def pending(self) -> Collective | None:
        """The oldest collective that this rank has entered and that is not over; None if there is none."""
        return next((entry for entry in self.entries if not entry.over), None)

    def find(self, group: str, number: int) -> Collective | None:
        """Return the entry of a collective; None if the recorder has none."""
        return next((entry for entry in self.entries if (entry.group, entry.number) == (group, number)), None)


def kept(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorder's dump with only the newest entries of each group and the entries that are not over."""
    found = dump.get("entries")
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(_group(entry), []).append(entry)
    newest = {id(entry) for of_group in groups.values() for entry in of_group[-KEPT:]}
    return {**dump, "entries": [entry for entry in entries if id(entry) in newest or not _over(entry)]}


def read(dump: Mapping[str, Any]) -> FlightRecord:
    """Return the contents of a recorder's dump. Point-to-point operations are left out.

    Args:
        dump: a dump that `kept` has filtered, as parsed from JSON.

    Raises:
        ValueError: the entries are no list of objects, which `kept` always makes of them.
    """
    entries = []
    for entry in untrusted_json.mappings(dump.get("entries", []), "`entries`"):
        number = entry.get("collective_seq_id")
        if not isinstance(number, int) or entry.get("is_p2p"):
            continue
        name = str(entry.get("profiling_name", "collective")).rpartition(":")[2]
        entries.append(
            Collective(
                group=_group(entry),
                number=number,
                name=name,
                sizes=str(entry.get("input_sizes", "")),
                over=_over(entry),
            )
        )
    return FlightRecord(tuple(entries), _members(dump.get("pg_config")))


def _group(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    return str(group[0]) if isinstance(group, list) and group else ""


def _over(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group whose configuration is understood, by the group's name."""
    found = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = str(group.get("ranks", "")) if isinstance(group, dict) else ""
        numbers = [word.strip() for word in ranks.strip("[]").split(",")]
        if all(number.isdigit() for number in numbers):
            found[str(name)] = tuple(int(number) for number in numbers)
    return found


# --- several ranks --------------------------------------------------------------------------------------------


def behind(flights: Mapping[int, FlightRecord]) -> set[int]:
    """Return the ranks that are in no collective, and have not entered a collective that another rank is in.

    Args:
        flights: the known recorders' contents, by rank.
    """
    found = set()
    for flight in flights.values():
        awaited = flight.pending
        if awaited is not None:
            found |= {rank for rank in absent(awaited, flights) if flights[rank].pending is None}
    return found


def absent(awaited: Collective, flights: Mapping[int, FlightRecord]) -> list[int]:
    """Return the known ranks that belong to the group of a collective but have not entered the collective."""
    return [
        rank
        for rank, flight in flights.items()
        if flight.newest(awaited.group) < awaited.number and _belongs(rank, awaited.group, flights)
    ]


def mismatched(rank: int, flights: Mapping[int, FlightRecord]) -> tuple[int, Collective, Collective] | None:
    """Return a rank that has entered another collective than `rank` under the same number of the same group.

    Returns:
        The other rank, the other rank's collective, and the collective of `rank`; None if there is no such rank.
    """
    mine = flights[rank].pending if rank in flights else None
    if mine is None:
        return None
    for other, flight in flights.items():
        theirs = flight.find(mine.group, mine.number)
        if theirs is not None and not _alike(mine, theirs):
            return other, theirs, mine
    return None


def _alike(one: Collective, other: Collective) -> bool:
    """Return whether two entries are of the same collective. Only all_reduce needs equal sizes on all ranks."""
    return one.name == other.name and (one.sizes == other.sizes or one.name != "all_reduce")


def crossed(rank: int, flights: Mapping[int, FlightRecord]) -> tuple[int, Collective, Collective] | None:
    """Return a rank that waits for `rank` in another group than the one in which `rank` waits for the other rank.

    Returns:
        The other rank, the other rank's collective, and the collective of `rank`; None if there is no such rank.
    """
    mine = flights[rank].pending if rank in flights else None
    if mine is None:
        return None
    for other in absent(mine, flights):
        theirs = flights[other].pending
        if theirs is not None and theirs.group != mine.group and rank in absent(theirs, flights):
            return other, theirs, mine
    return None


def _belongs(rank: int, group: str, flights: Mapping[int, FlightRecord]) -> bool:
    """Return whether a rank belongs to a group: the rank has used the group, or a recorder lists the rank.

    All ranks belong to group 0.
    """
    if group == "0" or flights[rank].newest(group) > 0:
        return True
    members = [flight.members[group] for flight in flights.values() if group in flight.members]
    # gloo's recorder lists no members. A group of one rank never waits, so that in a job of two ranks both belong.
    return rank in members[0] if members else len(flights) == 2


def waiting_in(flights: Mapping[int, FlightRecord], ranks: Sequence[int]) -> Collective | None:
    """Return the collective that all of `ranks` are in; None if there is no such collective."""
    first = flights[ranks[0]].pending if ranks and ranks[0] in flights else None
    if first is None or any(rank not in flights or flights[rank].pending != first for rank in ranks):
        return None
    return first
