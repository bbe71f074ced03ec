"""The copy of the head's journal on a node with a run dir of its own: whole up to its end, or left as it was."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.files import FilesInPlace

from ftlaunch.nodes.agent.node.own_files import PUT_ASIDE, OwnFiles
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.checkpoint import layout


class NodeWithCopies:
    """A node's files, and what they say."""

    def __init__(self, home: Path) -> None:
        self.run_dir = home / "run"
        self.run_dir.mkdir()
        flags = {"nproc_per_node": "2", "nnodes": "2", "rdzv_endpoint": "10.0.0.1:29400", "run_dir": str(self.run_dir)}
        self.said: list[str] = []
        self.disk = FilesInPlace()
        unused: Any = None
        spec = resolve(str(home / "train.py"), [], flags, {})
        self.files = OwnFiles(spec, self.disk, unused, self.said.append)
        self.files.is_apart = True
        self.journal = self.run_dir / "events.jsonl"

    def piece(self, offset: int, content: bytes, name: str = "events.jsonl") -> None:
        """A piece comes from the head."""
        self.files.keep_copy({"name": name, "offset": offset, "data": base64.b64encode(content).decode()})


@pytest.fixture
def node(tmp_path: Path) -> NodeWithCopies:
    (tmp_path / "train.py").touch()
    return NodeWithCopies(tmp_path)


def test_pieces_are_joined(node: NodeWithCopies) -> None:
    assert node.files.begin_copies() == (0, "")
    node.piece(0, b"one\n")
    node.piece(4, b"two\n")
    assert node.journal.read_bytes() == b"one\ntwo\n"
    assert node.files.begin_copies()[0] == 8


def test_a_journal_that_has_appeared_since_is_another_jobs(node: NodeWithCopies) -> None:
    node.files.begin_copies()
    node.journal.write_bytes(b"another job has begun\n")
    node.piece(0, b"one\n")
    node.piece(4, b"two\n")
    assert node.journal.read_bytes() == b"another job has begun\n"
    assert not (node.run_dir / PUT_ASIDE).exists()
    assert node.said == [f"cannot copy the head's run dir: {node.journal}: File exists; ftctl lacks it on this node"]


def test_after_a_piece_that_failed_none_is_written(node: NodeWithCopies) -> None:
    """Else the copy had a hole where the piece belongs."""
    node.files.begin_copies()
    node.piece(0, b"one\n")
    content = node.journal.read_bytes()
    node.journal.unlink()
    node.journal.mkdir()
    node.piece(4, b"two\n")
    node.journal.rmdir()
    node.journal.write_bytes(content)
    node.piece(8, b"three\n")
    assert node.journal.read_bytes() == b"one\n"
    assert len(node.said) == 1
    node.files.begin_copies()
    node.piece(4, b"two\n")
    assert node.journal.read_bytes() == b"one\ntwo\n", "the head was told anew what this node has"


def test_a_disk_that_does_not_say_whose_run_dir_it_is_gets_no_copies(node: NodeWithCopies) -> None:
    node.disk.answers = False
    assert node.files.begin_copies() == (0, "")
    node.disk.answers = True
    node.piece(0, b"one\n")
    node.piece(-1, b"7", name=layout.SEED)
    assert not list(node.run_dir.iterdir())
    (sentence,) = node.said
    assert sentence.startswith("cannot copy the head's run dir: /files:")


def test_what_no_copy_is_made_of_is_refused(node: NodeWithCopies) -> None:
    node.files.begin_copies()
    with pytest.raises(ValueError, match=r"a copy of 'train\.py' from byte 0"):
        node.piece(0, b"import os", name="train.py")
