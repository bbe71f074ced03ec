"""Copiers copy snapshots from node to node, and make slots of them again, byte for byte."""

from __future__ import annotations

from collections import Counter

from tests.support import copier_fixture
from tests.support.copier_fixture import Make
from tests.support.copiers import replicated, same_files
from tests.support.waiting import wait_for

from ftlaunch_contract.pages.page import NONE

MIB = 1 << 20
make = copier_fixture.make


def test_of_what_is_replicated_only_the_ranks_own_is_copied(make: Make) -> None:
    one, other = make(0, range(2)), make(1, range(2, 4))
    for node in (one, other):
        node.attempt()
        node.snapshot(10, 0, "ddp", MIB)
    one.send_to(other)
    copied = one.ask("copy", step=10)
    assert copied.get("error") is None
    assert copied["asked"]
    assert 2 * 5056 <= copied["bytes"] < 20_000
    assert other.freeze() == {"0": [10], "1": [10]}


def test_slots_that_are_fetched_are_those_that_were_lost(make: Make) -> None:
    one, other, third = make(0, range(2)), make(1, range(2, 4)), make(2, range(0))
    for node in (one, other, third):
        node.attempt()
    one.snapshot(10, 1, "ddp", 3 * MIB)
    other.snapshot(10, 0, "ddp", 3 * MIB)
    one.send_to(other)
    copied = one.ask("copy", step=10)
    assert copied.get("error") is None
    one.kill()
    assert other.freeze() == {"0": [10], "1": [10]}
    assert third.freeze() == {}
    fetched = third.fetch(10, {0: 2, 1: 0}, [other], [other])
    assert fetched.get("error") is None
    assert same_files(one.slot(0, 1), third.slot(0, 2))
    assert same_files(one.slot(1, 1), third.slot(1, 0))
    assert third.receive("fetch_plan") == {"did": "fetch_plan", "step": 10, "sources": fetched["sources"]}
    sums = Counter[tuple[int, str]]()
    for supply in fetched["sources"]:
        assert supply["of"] in (supply["rank"], 2, 3), "a copy, or a replica of the other node's own ranks"
        sums[supply["rank"], supply["group"]] += supply["bytes"]
    assert {supply["of"] for supply in fetched["sources"] if supply["group"] == "opt"} == {0, 1}, "their own"
    assert sums == {(0, "model"): 12 * MIB, (0, "opt"): 5056, (1, "model"): 12 * MIB, (1, "opt"): 5056}
    assert sums.total() == fetched["bytes"]


def test_what_two_nodes_hold_with_other_values_is_copied_and_fetched_from_the_copy(make: Make) -> None:
    """Taken out: a chunk without a sample of its values is the same on both nodes, and comes from the wrong one."""
    one, other, third = make(0, range(1)), make(1, range(1, 2)), make(2, range(0))
    for node in (one, other, third):
        node.attempt()
    for node in (one, other):
        node.write(node.ranks[0], 0, 10, replicated(node.ranks[0], 0, 1, step=10 + node.number, size=MIB))
    one.send_to(other)
    assert one.ask("copy", step=10)["bytes"] > 8 * MIB
    one.kill()
    other.freeze()
    assert third.fetch(10, {0: 0}, [other], [other]).get("error") is None
    assert same_files(one.slot(0, 0), third.slot(0, 0))


def test_a_standby_keeps_whole_shards_and_takes_the_place(make: Make) -> None:
    one, other, standby = make(0, range(2)), make(1, range(2, 4)), make(2, range(0))
    for node in (one, other, standby):
        node.attempt()
    one.snapshot(10, 0, "fsdp", 5 * MIB + 123)
    one.send_to(standby)
    one.send("every", every=5)
    copied = one.receive("copied")
    assert (copied["step"], copied["node"]) == (10, 2)
    assert copied["bytes"] >= 4 * (5 * MIB + 123)
    one.kill()
    assert standby.freeze() == {"0": [10], "1": [10]}
    fetched = standby.fetch(10, {0: 0, 1: 1}, [standby], [other])
    assert fetched.get("error") is None
    assert same_files(one.slot(0, 0), standby.slot(0, 0))
    assert same_files(one.slot(1, 0), standby.slot(1, 1))


def test_copies_of_the_step_that_is_resumed_belong_to_the_next_attempt(make: Make) -> None:
    one, other = make(0, range(2)), make(1, range(2, 4))
    for node in (one, other):
        node.attempt()
        for step, slot in ((5, 0), (10, 1)):
            node.snapshot(step, slot, "fsdp")
    one.send_to(other)
    for step in (5, 10):
        assert one.ask("copy", step=step).get("error") is None
    assert other.freeze() == {"0": [5, 10], "1": [5, 10]}
    other.attempt("two", resumed=("one", 5))
    assert "lineage" in one.ask("copy", step=10)["error"], "the sender is of the attempt before"
    assert other.freeze("two") == {"0": [5], "1": [5]}
    assert other.freeze() == {}, "those of the earlier attempt belong to the newer one"
    assert not (other.memory / "peers/0/1").exists()
    other.attempt("three", resumed=("two", 4))
    assert other.freeze() == {}


def test_two_copies_are_kept_of_each_rank(make: Make) -> None:
    one, other = make(0, range(2)), make(1, range(2, 4))
    for node in (one, other):
        node.attempt()
    one.send_to(other)
    one.send("every", every=5)
    for number, step in enumerate(range(1, 31)):
        for node in (other, one):
            node.snapshot(step, number % 3, "ddp")
        if step % 5 == 0:
            copied = one.receive("copied")
            assert copied.get("error") is None
            assert copied["step"] == step
            assert "asked" not in copied
    assert other.freeze() == {"0": [25, 30], "1": [25, 30]}


def test_a_copy_waits_for_the_ranks_of_the_node_that_keeps_it(make: Make) -> None:
    one, other = make(0, range(2)), make(1, range(2, 4))
    for node in (one, other):
        node.attempt()
        node.snapshot(10, 0, "ddp", MIB)
    for page in other.pages.values():
        page.set_slot(0, NONE)
    one.send_to(other)
    early = one.ask("copy", step=10)
    assert early["error"] == "node 1 refused it: rank 2 does not hold step 10 whole any more, or not yet"
    one.send("copy", step=10)
    wait_for(lambda: one.pages[0].sending == 10, "the copy to begin")
    for page in other.pages.values():
        page.set_slot(0, 10)
    copied = one.receive("copied")
    assert copied.get("error") is None
    assert copied["bytes"] < 20_000


def test_a_copy_that_is_there_is_not_sent_again(make: Make) -> None:
    one, standby = make(0, range(2)), make(1, range(0))
    for node in (one, standby):
        node.attempt()
    one.snapshot(10, 0, "fsdp", MIB)
    one.send_to(standby)
    assert one.ask("copy", step=10)["bytes"] > 4 * MIB
    assert one.ask("copy", step=10)["bytes"] < 10_000


def test_a_share_of_a_node_that_fails_is_fetched_from_another(make: Make) -> None:
    one, other, third = make(0, range(1)), make(1, range(1, 2)), make(2, range(2, 3))
    standby = make(3, range(0))
    for node in (one, other, third, standby):
        node.attempt()
        node.snapshot(10, 0, "ddp", 4 * MIB)
    one.send_to(other)
    assert one.ask("copy", step=10).get("error") is None
    fetched = standby.fetch(10, {0: 0}, [other], [other, third])
    assert {told["node"] for told in fetched["sources"] if told["group"] == "model"} == {1, 2}, "the load is shared"
    third.kill()
    fetched = standby.fetch(10, {0: 1}, [other], [other, third])
    assert fetched.get("error") is None
    assert {told["node"] for told in fetched["sources"]} == {1}
    for slot in (0, 1):
        assert same_files(one.slot(0, 0), standby.slot(0, slot))
    other.kill()
    lost = standby.fetch(10, {0: 1}, [other], [other, third])
    assert lost["error"].startswith("the snapshot of rank 0 is lost, no node that answers has a copy of it; node 1: ")
    assert not standby.slot(0, 1).exists()


def test_a_step_that_a_supplier_has_overwritten_cannot_be_fetched(make: Make) -> None:
    one, other, standby = make(0, range(2)), make(1, range(2, 4)), make(2, range(0))
    for node in (one, other, standby):
        node.attempt()
        node.snapshot(10, 0, "ddp", MIB)
    one.send_to(other)
    assert one.ask("copy", step=10).get("error") is None
    other.snapshot(11, 0, "ddp", MIB)
    lost = standby.fetch(10, {0: 0}, [other], [other])
    assert "no node that answers has its layer." in lost["error"]
    assert "node 1: rank 2 does not hold" in lost["error"] or "it holds no snapshot of rank 2" in lost["error"]
