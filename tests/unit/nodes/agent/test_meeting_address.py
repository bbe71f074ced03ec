"""Where a head listens and which address it tells: other machines must find it, whatever its own machine calls it."""

from __future__ import annotations

import pytest

from ftlaunch.nodes.agent.meeting_address import choose, choose_for_store

OUT = "10.0.0.1"


@pytest.mark.parametrize(
    ("host", "own", "told"),
    [
        ("node1", ["127.0.1.1"], OUT),
        ("node1", ["::1", "127.0.0.1"], OUT),
        ("node1.cluster.example", ["127.0.1.1", "10.0.0.9"], "10.0.0.9"),
        ("node1", ["fd00::9", "10.0.0.9"], "fd00::9"),
    ],
)
def test_of_a_name_all_addresses_are_bound_and_one_for_others_is_told(host: str, own: list[str], told: str) -> None:
    """Taken out: a head at 127.0.1.1 is each other machine itself, and nobody comes."""
    found = choose(host, own, 29400, lambda: [OUT])
    assert found.advertised == told
    assert found.bind in ("::", "0.0.0.0")
    assert found.port == 29400


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "localhost.localdomain", "a.localhost", "10.0.0.9", "fd00::9"]
)
def test_an_address_and_localhost_mean_what_they_say(host: str) -> None:
    own = host if host[0].isdigit() or ":" in host else "127.0.0.1"
    found = choose(host, [own], 29400, lambda: [OUT])
    assert (found.bind, found.advertised) == (own, own)


def test_a_machine_without_a_network_tells_what_it_has() -> None:
    found = choose("node1", ["127.0.1.1"], 29400, list)
    assert found.advertised == "127.0.1.1"


@pytest.mark.parametrize(
    ("ways", "told"),
    [
        (["10.0.0.9"], "10.0.0.9"),
        (["127.0.0.1", "10.0.0.9", "10.0.0.8"], "10.0.0.9"),
        (["::1", "127.0.0.1"], OUT),
        ([], OUT),
    ],
)
def test_where_nodes_meet_in_etcd_the_head_is_on_the_way_to_it(ways: list[str], told: str) -> None:
    """Taken out: where each machine has a member of its own, each head says that it is at 127.0.0.1."""
    assert choose_for_store(ways, lambda: [OUT]) == told
    assert choose_for_store(["127.0.0.2"], list) == "127.0.0.2", "a machine without a network"
