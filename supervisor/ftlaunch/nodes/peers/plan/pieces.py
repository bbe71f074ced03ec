"""Cuts the bytes of a copy into pieces, and distributes those of a fetch over the nodes that have them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ftlaunch.memory.recovery_plan import balance

LARGEST = 8 << 20
"""bytes of a piece on the wire, which is verified as a whole"""
MOST_RANGES = 1024
"""ranges of files in one piece"""
_LARGEST_SHARE = 64 << 20  # bytes of a share, the unit that is given to one node
_LEAST_SHARE = 1 << 20  # bytes
_SHARES = 4  # for each node, at least, if there are enough bytes, so that the load is even

FileRange = tuple[int, str, int, int]
"""rank, group, begin and end in bytes: a part of the tensor file of a rank's snapshot"""


def cut(ranges: Iterable[FileRange], largest: int = LARGEST, most: int = MOST_RANGES) -> list[list[FileRange]]:
    """Cut ranges into pieces, in order. Both sides of a copy cut in the same way.

    Args:
        ranges: the ranges.
        largest: bytes of a piece at most.
        most: ranges of a piece at most.
    """
    pieces: list[list[FileRange]] = []
    room = left = 0
    for rank, group, first, end in ranges:
        begin = first
        while begin < end:
            if not room or not left:
                pieces.append([])
                room = largest
                left = most
            stop = min(end, begin + room)
            pieces[-1].append((rank, group, begin, stop))
            room -= stop - begin
            left -= 1
            begin = stop
    return pieces


# --- a fetch -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stretch:
    """Bytes of a file to restore, and where each node has them."""

    rank: int
    group: str
    begin: int
    size: int
    sources: Mapping[int, tuple[int, str, int]]
    """supplier -> rank, group and first byte in the supplier's file"""

    def part(self, first: int, size: int) -> Stretch:
        """Return the stretch of `size` bytes that begins `first` bytes after this one's begin."""
        moved = {node: (rank, group, begin + first) for node, (rank, group, begin) in self.sources.items()}
        return Stretch(rank=self.rank, group=self.group, begin=self.begin + first, size=size, sources=moved)

    def wanted_from(self, supplier: int) -> FileRange:
        """Return the range of the supplier's file that holds these bytes."""
        rank, group, begin = self.sources[supplier]
        return rank, group, begin, begin + self.size


def joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Join neighbouring stretches that are neighbours at every supplier, too."""
    found: list[Stretch] = []
    for new in stretches:
        if found and _continues(found[-1], new):
            last = found[-1]
            found[-1] = replace(last, size=last.size + new.size)
        else:
            found.append(new)
    return found


def _continues(last: Stretch, new: Stretch) -> bool:
    is_next = (new.rank, new.group, new.begin) == (last.rank, last.group, last.begin + last.size)
    return is_next and new.sources == last.part(last.size, 0).sources


def share_out(stretches: Sequence[Stretch], without: Collection[int] = ()) -> dict[int, list[Stretch]]:
    """Distribute stretches over suppliers, so that the busiest one sends as little as possible.

    Args:
        stretches: the stretches.
        without: suppliers that have failed.

    Returns:
        The stretches by supplier.

    Raises:
        LookupError: no supplier is left for a stretch, which is the argument of the error.
    """
    shares = list(_shares(stretches, frozenset(without)))
    chosen = balance({number: suppliers for number, (suppliers, _) in enumerate(shares)})
    found: dict[int, list[Stretch]] = {}
    for number, (_, share) in enumerate(shares):
        found.setdefault(chosen[number], []).extend(share)
    return found


def _shares(stretches: Sequence[Stretch], without: frozenset[int]) -> Iterable[tuple[frozenset[int], list[Stretch]]]:
    """Yield shares of about equal size, each with the suppliers that have all of it."""
    by_suppliers: dict[frozenset[int], list[Stretch]] = {}
    for stretch in stretches:
        suppliers = frozenset(stretch.sources) - without
        if not suppliers:
            raise LookupError(stretch)
        by_suppliers.setdefault(suppliers, []).append(stretch)
    nodes = len(frozenset[int]().union(*by_suppliers))
    amount = sum(stretch.size for stretch in stretches)
    largest = min(max(-(-amount // (_SHARES * max(nodes, 1))), _LEAST_SHARE), _LARGEST_SHARE)
    for suppliers, found in by_suppliers.items():
        for share in _cut_stretches(found, largest, len(found)):
            yield suppliers, share


def batches(stretches: Iterable[Stretch]) -> list[list[Stretch]]:
    """Cut stretches into pieces for the wire."""
    return _cut_stretches(stretches, LARGEST, MOST_RANGES)


def _cut_stretches(stretches: Iterable[Stretch], largest: int, most: int) -> list[list[Stretch]]:
    found: list[list[Stretch]] = []
    room = left = 0
    for stretch in stretches:
        done = 0
        while done < stretch.size:
            if not room or not left:
                found.append([])
                room = largest
                left = most
            size = min(stretch.size - done, room)
            found[-1].append(stretch.part(done, size))
            room -= size
            left -= 1
            done += size
    return found
