"""Which failures count against a machine, and who loses a place to whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.fakes.files import FilesInPlace

from ftlaunch.nodes.cluster.membership import isolated_machines
from ftlaunch.nodes.cluster.membership.isolated_machines import NAME, IsolatedMachines
from ftlaunch.nodes.cluster.membership.isolation import MOST_MACHINES, Isolation
from ftlaunch.nodes.cluster.membership.roster import Member, Roster


def failed(isolation: Isolation, *kinds: str, place: int = 1) -> None:
    """An attempt on two machines for each kind."""
    for kind in kinds:
        isolation.begin_attempt({0: "a", 1: "b"})
        isolation.blame(place, kind)


def test_a_machine_is_isolated_after_so_many_failures_that_began_there() -> None:
    isolation = Isolation(2, {})
    failed(isolation, "killed")
    assert not isolation.is_isolated("b")
    failed(isolation, "node-lost")
    assert isolation.is_isolated("b")
    assert not isolation.is_isolated("a")
    assert isolation.forgive("b") == 2
    assert not isolation.is_isolated("b")


@pytest.mark.parametrize("kind", ["comm", "comm-timeout", "exception", "exception-at-start", "left-early", "numerical"])
def test_what_the_script_does_wrong_or_a_peer_counts_for_no_machine(kind: str) -> None:
    """Taken out: a script that raises on rank 0 makes the job lose one machine after another."""
    isolation = Isolation(1, {})
    failed(isolation, kind)
    assert isolation.failures == {}


@pytest.mark.parametrize("kind", ["gpu", "killed", "signal", "hang", "slow", "spawn", "node-lost", "divergence"])
def test_what_a_machine_may_have_done_counts(kind: str) -> None:
    isolation = Isolation(1, {})
    failed(isolation, kind)
    assert isolation.failures == {"b": 1}


def test_an_attempt_counts_once_and_a_rank_that_is_none_does_not() -> None:
    """A machine that dies loses its ranks first, and then its agent."""
    isolation = Isolation(2, {})
    isolation.begin_attempt({0: "a", 1: "b"})
    assert isolation.blame(1, "killed")
    assert not isolation.blame(1, "node-lost")
    assert not isolation.blame(-1, "resume")
    assert not isolation.blame(-1, "divergence"), "it is not known on which rank"
    assert isolation.failures == {"b": 1}


def test_off_never_isolates() -> None:
    isolation = Isolation(0, {"b": 100})
    assert not isolation.is_isolated("b")


def test_the_number_of_machines_is_bounded() -> None:
    isolation = Isolation(1, {f"m{number}": 1 for number in range(MOST_MACHINES)})
    failed(isolation, "killed")
    assert len(isolation.failures) == MOST_MACHINES
    assert not isolation.is_isolated("b")


# --- places -------------------------------------------------------------------------------------------------------


def members(*machines: str) -> list[Member]:
    """The first two have places."""
    return [Member(n, -1, -1, True, n if n < 2 else -1, machine) for n, machine in enumerate(machines)]


def told(home: Path, limit: int = 2) -> tuple[IsolatedMachines, list[str]]:
    said: list[str] = []
    return IsolatedMachines(limit, home, FilesInPlace(), said.append), said


def test_a_standby_takes_the_place_and_a_sentence_says_so(tmp_path: Path) -> None:
    machines, said = told(tmp_path)
    nodes, left = members("a/1", "b/2", "c/3"), list[int]()
    for _ in range(2):
        machines.begin_attempt(nodes)
        machines.blame(1, "killed")
    assert machines.due(nodes), "what memory holds is to be saved before"
    machines.replace(nodes, left.append)
    assert not machines.due(nodes)
    assert [one.place for one in nodes] == [0, -1, 1]
    assert left == [1]
    assert said == [
        "2 failures have begun on node 1 (b; --isolate-after): it gets no ranks any more, and c takes its place"
    ]


@pytest.mark.parametrize("standby", [[], ["b/2"], ["unready"]])
def test_where_nobody_can_take_it_the_place_is_kept_and_that_is_said_once(tmp_path: Path, standby: list[str]) -> None:
    """Taken out: a job would end for want of a better machine."""
    machines, said = told(tmp_path, 1)
    nodes = members("a/1", "b/2", *standby)
    for one in nodes:
        one.ready = one.machine != "unready"
    machines.begin_attempt(nodes)
    machines.blame(1, "killed")
    for _ in range(3):
        assert not machines.due(nodes)
        machines.replace(nodes, lambda place: pytest.fail("nobody leaves"))
    assert [one.place for one in nodes[:2]] == [0, 1]
    assert said == [
        "1 failure has begun on node 1 (b; --isolate-after): it keeps its place, for no other node stands by to take it"
    ]


def test_in_the_roster_isolated_members_come_last() -> None:
    roster = Roster(2, 2)
    for one in (Member(1, -1, 0, True, isolated=True), Member(2, -1, -1, True), Member(3, -1, -1, True)):
        roster.join(one)
    assert roster.fill()
    assert roster.members[1].place == -1
    roster.leave(2)
    assert roster.fill(), "there is no other: it gets the place"
    assert roster.members[1].place == 0


# --- the file -----------------------------------------------------------------------------------------------------


def test_another_head_knows_the_failures(tmp_path: Path) -> None:
    machines, _ = told(tmp_path)
    machines.begin_attempt(members("a/1", "b/2"))
    machines.blame(0, "killed")
    again, said = told(tmp_path)
    assert again.failures("a/1") == 1
    answer = again.forgive("a", [])
    assert answer == {"ok": True, "hosts": "a", "forgiven": 1}
    assert told(tmp_path)[0].failures("a/1") == 0
    assert "failures that began on a are forgiven (ftctl; there were 1)" in said[0]


def test_forgive_takes_a_place_or_a_host_and_names_those_that_there_are(tmp_path: Path) -> None:
    machines, _ = told(tmp_path)
    nodes = members("a/1", "b/2")
    machines.begin_attempt(nodes)
    machines.blame(1, "killed")
    refused = machines.forgive("x" * 1000, nodes)
    assert refused["ok"] is False
    assert refused["error"].endswith("no node has that host or place; known hosts are a, b")
    assert len(refused["error"]) < 200
    assert machines.forgive("1", nodes)["hosts"] == "b"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"a": -1}', b'{"a": "x"}', b'{"a": true}', b'{"a": 1, "a": 2}', b"[" * 100_000]
)
def test_a_file_that_is_none_is_no_failures(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert isolated_machines.read(tmp_path) == {}


def test_a_file_that_is_too_long_is_cut(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({f"m{number}": 1 for number in range(5000)}))
    assert len(isolated_machines.read(tmp_path)) == MOST_MACHINES
