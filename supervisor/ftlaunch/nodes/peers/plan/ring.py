"""Decides which node keeps whose copies: a ring of places. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

_CHOICE = 64  # places that a buddy is chosen from, so that the choice is fast for thousands of nodes


def buddies(places: Mapping[int, str], standbys: Sequence[int] = ()) -> dict[int, int]:
    """Choose the buddy of each place, the node that keeps its copies.

    The buddy is the next place in another failure domain, else the next place. A place that keeps copies already is
    passed over if another choice exists, even if an earlier place must then change its buddy. Therefore each node keeps
    the copies of one other node, if possible.

    Args:
        places: the failure domain of each place.
        standbys: nodes with room for copies; the first one keeps the copies of the lowest place, and so on.

    Returns:
        The buddy by place; a single place without standbys has none.
    """
    order = sorted(places)
    found = dict(zip(order, standbys, strict=False))
    ring = order[len(found) :]
    wishes = {}
    for index, place in enumerate(order):
        apart = (other for other in _after(order, index) if places[other] != places[place])
        wishes[place] = list(islice(apart, _CHOICE)) or list(islice(_after(order, index), _CHOICE))
    kept = _matched({place: wishes[place] for place in ring})
    return found | {place: kept.get(place, wishes[place][0]) for place in ring if wishes[place]}


def _after(order: Sequence[int], index: int) -> Iterator[int]:
    """Return the places after and before the one at an index, as in a ring."""
    return chain(islice(order, index + 1, None), islice(order, index))


def _matched(wishes: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return a buddy of its own for as many places as possible, the first possible one of each place's wishes."""
    keeps: dict[int, int] = {}  # buddy -> place
    for place in wishes:
        reached = {}  # buddy -> the place that would move there
        moving = [place]
        for mover in moving:  # the list grows during the loop
            for buddy in wishes[mover]:
                if buddy in reached:
                    continue
                reached[buddy] = mover
                if buddy in keeps:
                    moving.append(keeps[buddy])
                    continue
                _move(keeps=keeps, reached=reached, free=buddy, place=place)
                moving.clear()
                break
    return {place: buddy for buddy, place in keeps.items()}


def _move(keeps: dict[int, int], reached: Mapping[int, int], free: int, place: int) -> None:
    """Give `free` to the place that reached it, that place's old buddy to the place that reached this one, and so on.

    The chain ends with `place`, which had no buddy.
    """
    if reached[free] == place:  # no other place has to change
        keeps[free] = place
        return
    before = {mover: buddy for buddy, mover in keeps.items()}
    target: int | None = free
    while target is not None:
        mover = reached[target]
        keeps[target] = mover
        target = before.get(mover) if mover != place else None
