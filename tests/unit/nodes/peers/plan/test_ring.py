"""Who keeps whose copies."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.nodes.peers.plan.ring import buddies

places = st.lists(st.sampled_from("abcde"), max_size=9).map(lambda domains: dict(enumerate(domains)))


def test_nodes_of_their_own_domains_are_a_ring() -> None:
    assert buddies({0: "a", 1: "b", 2: "c"}) == {0: 1, 1: 2, 2: 0}
    assert buddies({0: "a", 1: "b"}) == {0: 1, 1: 0}
    assert buddies({0: "a"}) == {}
    assert buddies({}) == {}


def test_a_buddy_is_in_another_rack_where_there_is_one() -> None:
    assert buddies({0: "a", 1: "a", 2: "b", 3: "b"}) == {0: 2, 1: 3, 2: 0, 3: 1}
    assert buddies({0: "a", 1: "a", 2: "a"}) == {0: 1, 1: 2, 2: 0}
    assert buddies({0: "a", 1: "b", 2: "c", 3: "a"}) == {0: 1, 1: 0, 2: 3, 3: 2}, "nobody keeps two"
    assert buddies({0: "a", 1: "b", 2: "a"}) == {0: 1, 1: 2, 2: 1}, "a far one keeps two rather than a near one any"


def test_standbys_keep_the_copies_of_the_first_places() -> None:
    assert buddies({0: "a", 1: "b", 2: "c"}, [7]) == {0: 7, 1: 2, 2: 0}
    assert buddies({0: "a"}, [7, 8]) == {0: 7}


@given(places, st.integers(0, 3))
def test_everybody_has_a_buddy_that_is_another_node(places: dict[int, str], spare: int) -> None:
    standbys = list(range(100, 100 + spare))
    found = buddies(places, standbys)
    assert found.keys() == (places.keys() if len(places) > 1 or standbys else set())
    assert all(place != buddy for place, buddy in found.items())
    for place, buddy in found.items():
        if buddy not in standbys and set(places.values()) != {places[place]}:
            assert places[buddy] != places[place]


@given(places)
def test_nobody_keeps_two_unless_the_domains_force_it(places: dict[int, str]) -> None:
    if len(places) < 2:
        return
    keeps = Counter(buddies(places).values())
    largest = max(Counter(places.values()).values())
    if largest == len(places) or 2 * largest <= len(places):
        assert set(keeps.values()) == {1}
    else:  # as many of the largest domain keep copies as there are others, and so do these
        assert len(keeps) == 2 * (len(places) - largest)
