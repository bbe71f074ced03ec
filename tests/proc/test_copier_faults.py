"""A copy is whole or not there, whatever happens to the copiers, the bytes, the memory or the slots meanwhile."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support import copier_fixture
from tests.support.copier_fixture import Make
from tests.support.copiers import CopierNode, same_files
from tests.support.disks import needs_root, tmpfs
from tests.support.flipping import FlippingWay
from tests.support.waiting import wait_for

from ftlaunch_contract.pages.page import NONE

pytestmark = pytest.mark.long

MIB = 1 << 20
SLOW = 8 * MIB  # bytes a second
make = copier_fixture.make


@pytest.fixture
def way() -> Iterator[Callable[..., FlippingWay]]:
    made = []

    def flipping(port: int, after: int, *, back: bool = False) -> FlippingWay:
        made.append(FlippingWay(port, after, back=back))
        return made[-1]

    yield flipping
    for one in made:
        one.close()


def pair(make: Make, **more: int) -> tuple[CopierNode, CopierNode]:
    """A node whose shards of step 5 another one keeps, and that has the step 10."""
    one, other = make(0, range(2), **more), make(1, range(2, 4))
    for node in (one, other):
        node.attempt()
        for step, slot in ((5, 0), (10, 1)):
            node.snapshot(step, slot, "fsdp", (64 << 10) if step == 5 else 12 * MIB)
    one.send_to(other)
    copied = one.ask("copy", step=5)
    assert copied.get("error") is None
    return one, other


def flows(one: CopierNode, other: CopierNode) -> None:
    """Wait until the first of the copy's bytes are there, and the rest is not."""
    source, copy = one.slot(0, 1) / "model.safetensors", other.memory / "peers/0/1/model.safetensors"
    wait_for(
        lambda: copy.exists() and copy.read_bytes()[: 1 << 20] == source.read_bytes()[: 1 << 20], "the first bytes"
    )
    last = other.memory / "peers/1/1/opt.safetensors"
    assert not last.read_bytes()[-MIB:].strip(b"\0"), "the copy is over already"
    assert one.pages[0].sending == one.pages[1].sending == 10


def test_a_sender_that_is_killed_leaves_the_older_copy(make: Make) -> None:
    one, other = pair(make, bandwidth=SLOW)
    one.send("copy", step=10)
    flows(one, other)
    one.kill()
    assert other.freeze() == {"0": [5], "1": [5]}
    one.start()
    one.attempt()
    assert one.pages[0].sending == NONE, "a copier that starts spares no slot for the one before it"


def test_a_receiver_that_is_killed_leaves_the_older_copy(make: Make) -> None:
    one, other = pair(make, bandwidth=SLOW)
    one.send("copy", step=10)
    flows(one, other)
    other.kill()
    failed = one.receive("copied")
    assert (failed["step"], failed["node"], failed["asked"]) == (10, 1, True)
    assert "error" in failed
    assert one.pages[0].sending == NONE
    other.start()
    other.attempt()
    one.send_to(other)
    assert one.ask("copy", step=10).get("error") is None
    assert other.freeze() == {"0": [5, 10], "1": [5, 10]}
    other.kill()
    other.start()
    other.attempt()
    assert other.freeze() == {"0": [5, 10], "1": [5, 10]}, "copies outlive the copier"


def test_a_step_that_is_overwritten_meanwhile_is_given_up(make: Make) -> None:
    one, other = pair(make, bandwidth=SLOW)
    one.send("copy", step=10)
    flows(one, other)
    one.pages[1].set_slot(1, NONE)
    failed = one.receive("copied")
    assert failed["error"] == "step 10 was overwritten while it was sent"
    assert one.ask("copy", step=5).get("error") is None, "the connection is of use still"
    assert other.freeze() == {"0": [5], "1": [5]}


def test_what_a_freeze_tells_is_what_there_is(make: Make) -> None:
    one, other = pair(make, bandwidth=SLOW)
    one.send("copy", step=10)
    flows(one, other)
    assert other.freeze() == {"0": [5], "1": [5]}
    assert one.receive("copied")["error"] == "node 1 refused it: it takes no copies now"
    assert other.freeze() == {"0": [5], "1": [5]}
    assert "takes no copies now" in one.ask("copy", step=10)["error"]
    one.freeze()
    assert "before the next attempt" in one.ask("copy", step=10)["error"]


def test_a_copy_ends_when_its_sender_is_frozen(make: Make) -> None:
    one, other = pair(make, bandwidth=SLOW)
    one.send("copy", step=10)
    flows(one, other)
    one.freeze()
    assert one.receive("copied")["error"] == "copies are wanted no more, or by another node"
    assert other.freeze() == {"0": [5], "1": [5]}


def test_an_altered_piece_is_sent_again(make: Make, way: Callable[..., FlippingWay]) -> None:
    one, other = pair(make)
    between = way(other.port, 20 * MIB)
    one.send_to(other, between.port)
    copied = one.ask("copy", step=10)
    assert copied.get("error") is None
    assert between.flipped == 1
    assert copied["bytes"] > 4 * 12 * MIB + 4 * MIB, "a piece went twice"
    assert other.freeze()["0"] == [5, 10]
    fetched = other.fetch(10, {0: 0, 1: 0}, [other], [])
    assert fetched.get("error") is None
    for rank in (0, 1):
        assert same_files(one.slot(rank, 1), other.slot(rank, 0))


def test_an_altered_description_is_sent_again(make: Make, way: Callable[..., FlippingWay]) -> None:
    """Some hundred bytes are the handshake, some hundred the message; then come headers and common.json."""
    one, other = pair(make)
    again = 0
    for step, after in enumerate(range(200, 2_200, 200), 20):
        between = way(other.port, after)
        one.send_to(other, between.port)
        one.snapshot(step, 0, "fsdp", 128)
        other.snapshot(step, 0, "fsdp", 128)
        told = one.ask("copy", step=step)
        assert between.flipped == 1
        again += "error" not in told
        if "error" in told:  # an altered message ends the connection
            assert one.ask("copy", step=step).get("error") is None
    assert again >= 3
    assert other.freeze()["0"][-1] == 29
    assert other.fetch(29, {0: 0}, [other], []).get("error") is None
    assert same_files(one.slot(0, 0), other.slot(0, 0))


def test_an_altered_piece_is_fetched_again(make: Make, way: Callable[..., FlippingWay]) -> None:
    one, other = pair(make)
    assert one.ask("copy", step=10).get("error") is None
    between = way(other.port, 20 * MIB, back=True)
    standby = make(2, range(0))
    standby.attempt()
    other.port = between.port
    fetched = standby.fetch(10, {0: 0, 1: 0}, [other], [])
    assert fetched.get("error") is None
    assert between.flipped == 1
    for rank in (0, 1):
        assert same_files(one.slot(rank, 1), standby.slot(rank, 0))


@needs_root
def test_a_copy_for_which_there_is_no_room_is_refused(make: Make, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "32m") as small:
        one, other = make(0, range(2)), make(1, range(0), place=small)
        for node in (one, other):
            node.attempt()
        one.snapshot(5, 0, "fsdp", 1 * MIB)
        one.snapshot(10, 1, "fsdp", 12 * MIB)
        one.send_to(other)
        assert one.ask("copy", step=5).get("error") is None
        refused = one.ask("copy", step=10)
        assert "node 1 refused it: no room: 49 MiB are needed" in refused["error"]
        assert one.ask("copy", step=5).get("error") is None
        assert other.freeze() == {"0": [5], "1": [5]}
        other.close()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (Debian: strace)")
def test_a_connection_for_which_there_is_no_thread_is_ended_and_the_next_one_is_served(
    make: Make, tmp_path: Path
) -> None:
    """Taken out: the thread that accepts connections dies, and the node keeps no copies as long as its copier lives."""
    one, other = make(0, range(1)), make(1, range(1, 2))
    for node in (one, other):
        node.attempt()
        node.snapshot(5, 0, "fsdp")
    log = tmp_path / "strace"
    command = ["strace", "-f", "-qq", "-o", str(log), "-e", "inject=clone,clone3:error=EAGAIN:when=1"]
    status = Path(f"/proc/{other.link.pid}/status")
    with subprocess.Popen([*command, "-p", str(other.link.pid)]) as strace:
        wait_for(lambda: "TracerPid:\t0\n" not in status.read_text(), "strace to attach")
        one.send_to(other)
        assert one.ask("copy", step=5)["error"]
        wait_for(lambda: "INJECTED" in log.read_text(), "the fault")
        strace.terminate()
    wait_for(lambda: one.ask("copy", step=5).get("error") is None, "a copy")
    assert other.freeze() == {"0": [5]}
