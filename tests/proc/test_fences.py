"""Whether the agent of a lost node is dead: its kernel says so, or the time does."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest
from tests.support.waiting import wait_for

from ftlaunch.nodes.agent.main import open_probe_socket
from ftlaunch.nodes.cluster.membership.fences import Fences

NOW, UNTIL = 100.0, 105.0


@pytest.fixture
def agent() -> Iterator[socket.socket]:
    """The port at which an agent listens as long as it lives."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def fenced(agent: socket.socket) -> Fences:
    fences = Fences()
    fences.add("127.0.0.1", agent.getsockname()[1], UNTIL)
    return fences


def test_without_a_lost_node_there_is_nothing_to_wait_for() -> None:
    assert Fences().all_down(NOW)


def test_an_agent_that_lives_may_have_ranks_until_the_time_is_over(agent: socket.socket) -> None:
    fences = fenced(agent)
    for _ in range(20):
        assert not fences.all_down(NOW)
    assert not fences.all_down(UNTIL - 0.01)
    assert fences.all_down(UNTIL)


def test_a_dead_agent_is_known_at_once(agent: socket.socket) -> None:
    fences = fenced(agent)
    assert not fences.all_down(NOW)
    agent.close()
    wait_for(lambda: fences.all_down(NOW), "the word that nobody listens")


def test_without_a_descriptor_nothing_is_known_and_the_next_look_asks(
    agent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out: the head ends the job with exit code 70 because it cannot ask for a moment."""
    fences = fenced(agent)
    agent.close()

    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as context:
        context.setattr(socket, "socket", refuse)
        assert not fences.all_down(NOW)
    wait_for(lambda: fences.all_down(NOW), "the word that nobody listens")


def test_an_agent_that_accepts_nothing_is_not_dead() -> None:
    """A stopped process: its kernel completes the first connections for it, then answers no more."""
    with socket.socket() as agent:
        agent.bind(("127.0.0.1", 0))
        agent.listen(0)
        fences = fenced(agent)
        for _ in range(20):
            assert not fences.all_down(NOW)
        assert fences.all_down(UNTIL)


def test_each_lost_node_is_waited_for(agent: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        fences = fenced(agent)
        fences.add("127.0.0.1", other.getsockname()[1], UNTIL + 10.0)
        agent.close()
        assert not fences.all_down(UNTIL)
    wait_for(lambda: fences.all_down(NOW), "the word that nobody listens")


def test_a_network_that_is_not_there_is_no_death() -> None:
    fences = Fences()
    fences.add("192.0.2.1", 9, UNTIL)  # of no network
    assert not fences.all_down(NOW)
    assert fences.all_down(UNTIL)


def test_ipv6(agent: socket.socket) -> None:
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6 at its loopback device (sysctl net.ipv6.conf.lo.disable_ipv6=0)")
    with listening:
        fences = Fences()
        fences.add("::1", listening.getsockname()[1], UNTIL)
        assert not fences.all_down(NOW)
    wait_for(lambda: fences.all_down(NOW), "the word that nobody listens")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_living_agent_is_alive_at_all_addresses_of_its_machine(address: str) -> None:
    """Taken out, where agents listen on IPv4 only: over IPv6 each lost node counts as dead while its ranks run on."""
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6 at its loopback device (sysctl net.ipv6.conf.lo.disable_ipv6=0)")
    with open_probe_socket() as listening:
        fences = Fences()
        fences.add(address, listening.getsockname()[1], UNTIL)
        for _ in range(20):
            assert not fences.all_down(NOW)
    wait_for(lambda: fences.all_down(NOW), "the word that nobody listens")
