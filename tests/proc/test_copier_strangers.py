"""Strangers, other versions and nonsense at a copier's port: refused with a sentence, and nothing ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support import copier_fixture
from tests.support.copier_fixture import Make
from tests.support.copiers import TOKEN, CopierNode
from tests.support.waiting import wait_for

from ftlaunch.nodes.channel.framing import FrameError, encode_frame
from ftlaunch.nodes.peers.copier_client import CopierLink
from ftlaunch.nodes.peers.wire import peer_connection
from ftlaunch.nodes.peers.wire.peer_connection import PeerConnection, connect
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.files import checksums

make = copier_fixture.make


@pytest.fixture
def node(make: Make, tmp_path: Path) -> CopierNode:
    """Has a copy of rank 0, and a rank of its own. What its copier says on stderr is in a file."""
    one = make(0, range(1))
    ours = os.dup(2)
    with (tmp_path / "stderr").open("wb") as said:
        os.dup2(said.fileno(), 2)
    other = make(1, range(1, 2))
    os.dup2(ours, 2)
    os.close(ours)
    for each in (one, other):
        each.attempt()
        each.snapshot(10, 0, "fsdp")
    one.send_to(other)
    assert one.ask("copy", step=10).get("error") is None
    return other


@pytest.fixture
def friend(node: CopierNode) -> Iterator[PeerConnection]:
    """A connection that knows the token."""
    connection = connect("127.0.0.1", node.port, bytes.fromhex(TOKEN))
    yield connection
    connection.close()


def refusal(tmp_path: Path) -> str:
    """The line that the copier says."""
    said = tmp_path / "stderr"
    wait_for(lambda: "refused a connection" in said.read_text(), "a line")
    assert "Traceback" not in said.read_text()
    return said.read_text()


def assert_well(node: CopierNode) -> None:
    assert node.freeze() == {"0": [10]}


def test_who_does_not_know_the_token_is_told_nothing(node: CopierNode, tmp_path: Path) -> None:
    with pytest.raises((FrameError, OSError)):
        connect("127.0.0.1", node.port, b"another")
    assert "it does not know the token" in refusal(tmp_path)
    assert_well(node)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", encode_frame(b"short"), encode_frame(b"x" * 32) * 2, b"\0" * 100, b""]
)
def test_garbage_is_refused(node: CopierNode, garbage: bytes, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", node.port)) as stranger:
        stranger.settimeout(60)
        stranger.sendall(garbage)
        with suppress(OSError):  # it may have been refused, and closed, before all was said
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 10):
                pass
    assert refusal(tmp_path)
    assert_well(node)


def test_many_strangers_keep_no_friend_out(node: CopierNode) -> None:
    with ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
        connect("127.0.0.1", node.port, bytes.fromhex(TOKEN)).close()
    assert_well(node)


def test_another_version_is_refused_on_both_sides(
    node: CopierNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = peer_connection.PROTOCOL
    monkeypatch.setattr(peer_connection, "PROTOCOL", "99")
    with pytest.raises(FrameError, match=f"it speaks version {ours} of the copiers' messages, this side speaks 99"):
        connect("127.0.0.1", node.port, bytes.fromhex(TOKEN))
    assert f"it speaks version 99 of the copiers' messages, this side speaks {ours}" in refusal(tmp_path)
    assert_well(node)


ABOUT = {"lineage": "one", "step": 10}
SLOT = {"rank": 0, "headers": {"model": ["0" * 32, 0], "opt": ["0" * 32, 0]}, "common": [checksums.of_whole(b""), 0]}
SLOT |= {"samples": [checksums.of_whole(b""), 0], "own": {"model": [], "opt": []}, "present": None}
OFFER = {"do": "copy", **ABOUT, "world": 4}


@pytest.mark.long
@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"do": "anything"}, "there is no such request"),
        ({}, "there is no such request"),
        ({"do": "about"}, "`lineage` is not text"),
        ({"do": "about", **ABOUT, "step": -1}, "`step` is not a whole number from 0"),
        ({"do": "about", **ABOUT, "rank": "../../etc"}, "a rank is not a whole number from 0"),
        ({"do": "about", **ABOUT, "rank": 1 << 40}, "1099511627776 is no rank"),
        ({"do": "read", **ABOUT, "ranges": [[0, "../x", 0, 1]]}, "a group of tensors is not known"),
        ({"do": "read", **ABOUT, "ranges": [[0, "opt", 0, 1 << 40]]}, "more than 8388608 bytes are asked for at once"),
        (
            {"do": "read", **ABOUT, "ranges": [[0, "opt", 5000, 5001]]},
            "the opt file of rank 0 has no bytes 5000 to 5001",
        ),
        ({"do": "read", **ABOUT, "ranges": [[0, "opt", 7, 7]]}, "the opt file of rank 0 has no bytes 7 to 7"),
        ({"do": "read", **ABOUT, "ranges": [[0, "opt", 7]]}, "not enough values to unpack"),
        ({"do": "read", **ABOUT, "ranges": 7}, "`ranges` is not a list of at most 1024"),
        ({**OFFER, "slots": [{}]}, "`headers` is not an object"),
        ({**OFFER, "slots": [SLOT]}, "a header is missing"),
        ({**OFFER, "slots": [{**SLOT, "rank": 1 << 30}]}, "1073741824 is no rank"),
        ({**OFFER, "slots": [{**SLOT, "common": ["x", 0]}]}, "common.json is no digest"),
        (
            {**OFFER, "slots": [{**SLOT, "common": ["0" * 32, 1 << 40]}]},
            "268435456 are allowed",
        ),
    ],
)
def test_nonsense_of_a_friend_ends_its_connection(
    node: CopierNode, friend: PeerConnection, message: dict[str, Any], why: str, tmp_path: Path
) -> None:
    friend.send(message)
    with pytest.raises(ConnectionResetError):
        friend.receive(30)
    assert why in refusal(tmp_path)
    assert_well(node)


def test_a_lineage_that_is_over_is_refused(node: CopierNode, friend: PeerConnection) -> None:
    friend.send({"do": "about", "lineage": "zero", "step": 10, "rank": 0})
    assert friend.receive()["error"] == "it holds nothing of lineage zero"
    friend.send({"do": "about", "lineage": "one", "step": 11, "rank": 0})
    assert friend.receive()["error"] == "it holds no snapshot of rank 0 of step 11"
    friend.send({"do": "read", "lineage": "one", "step": 11, "ranges": [[0, "opt", 0, 1]]})
    assert friend.receive()["error"] == "it holds no snapshot of rank 0 of step 11"


def test_a_copier_says_nothing_of_the_token(node: CopierNode) -> None:
    process = Path(f"/proc/{node.link.pid}")
    for name in ("cmdline", "environ"):
        assert TOKEN.encode() not in (process / name).read_bytes()


def test_an_address_that_is_not_ours_is_an_answer(make: Make) -> None:
    node = make(0, range(1))
    node.kill()
    node.link = CopierLink(HelperProcesses())
    answer = node.ask("begin", token=TOKEN, address="192.0.2.1", memory_dir=str(node.memory), bandwidth=None)
    assert answer == {"did": "begin", "error": "Cannot assign requested address"}
    answer = node.ask("begin", token=TOKEN, address="a name", memory_dir=str(node.memory), bandwidth=None)
    assert "error" in answer
