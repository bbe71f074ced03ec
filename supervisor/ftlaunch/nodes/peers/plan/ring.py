"""Which node keeps the copies of which: a ring of places. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

_CHOICE = 64  # places that a buddy is chosen from: a job of thousands of nodes must not wait for that


def buddies(places: Mapping[int, str], standbys: Sequence[int] = ()) -> dict[int, int]:
    """Place -> the node that keeps its copies; a node alone has none.

    places: place -> its failure domain; nodes without a common domain have domains of their own. standbys: nodes with
    room for copies; the first of them keeps the copies of the lowest place, and so on.

    The buddy is the next place in another failure domain, else the next place. A place that keeps copies already is
    passed over where there is another choice, for an earlier place too: so each node keeps the copies of one other.
    """
    order = sorted(places)
    found = dict(zip(order, standbys, strict=False))
    ring = order[len(found) :]
    wishes = {}
    for at, place in enumerate(order):
        apart = (other for other in _after(order, at) if places[other] != places[place])
        wishes[place] = list(islice(apart, _CHOICE)) or list(islice(_after(order, at), _CHOICE))
    kept = _matched({place: wishes[place] for place in ring})
    return found | {place: kept.get(place, wishes[place][0]) for place in ring if wishes[place]}


def _after(order: Sequence[int], at: int) -> Iterator[int]:
    """The other places, the next one first."""
    return chain(islice(order, at + 1, None), islice(order, at))


def _matched(wishes: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """As many places as possible with a buddy that no other has, the first of their wishes that can be had."""
    keeps: dict[int, int] = {}  # buddy -> place
    for place in wishes:
        reached = {}  # buddy -> the place that would move there
        moving = [place]
        for mover in moving:  # the list grows meanwhile
            for buddy in wishes[mover]:
                if buddy in reached:
                    continue
                reached[buddy] = mover
                if buddy in keeps:
                    moving.append(keeps[buddy])
                    continue
                _move(keeps, reached, buddy, place)
                moving.clear()
                break
    return {place: buddy for buddy, place in keeps.items()}


def _move(keeps: dict[int, int], reached: Mapping[int, int], free: int, place: int) -> None:
    """Give `free` to the place that reached it, what that place had to the one that reached this, up to `place`."""
    if reached[free] == place:  # nobody has to move
        keeps[free] = place
        return
    before = {mover: buddy for buddy, mover in keeps.items()}
    target: int | None = free
    while target is not None:
        mover = reached[target]
        keeps[target] = mover
        target = before.get(mover) if mover != place else None
