"""A node finds the head's word in the directories that all share, or says which of them is not shared."""

from __future__ import annotations

from pathlib import Path

from ftlaunch.nodes.cluster.membership import shared_dirs
from ftlaunch.nodes.cluster.membership.shared_dirs import NAME, PATIENCE_SECONDS, SharedDirs


def test_what_is_shared_is_proven_once(tmp_path: Path) -> None:
    shared_dirs.write([tmp_path], "one")
    node = SharedDirs([tmp_path])
    assert node.search(0.0) is None, "no head has named a word yet"
    assert not node.proven
    node.begin("one", 0.0)
    assert node.search(0.0) is None
    assert node.proven
    shared_dirs.forget([tmp_path])
    node.begin("another", 100.0)
    assert node.search(200.0) is None, "another head need not ask again"
    assert node.proven
    assert not (tmp_path / NAME).exists()


def looked(node: SharedDirs, begin: float, end: float) -> Path | None:
    """What it says at the end, where it looks every half second."""
    while begin < end:
        node.search(begin)
        begin += 0.5
    return node.search(end)


def test_a_file_may_show_late_and_not_too_late(tmp_path: Path) -> None:
    node = SharedDirs([tmp_path])
    node.begin("word", 0.0)
    assert looked(node, 0.0, PATIENCE_SECONDS - 0.1) is None
    (tmp_path / NAME).write_text("another head's")
    assert node.search(PATIENCE_SECONDS + 0.1) == tmp_path
    shared_dirs.write([tmp_path], "word")
    assert node.search(PATIENCE_SECONDS + 0.2) is None
    assert node.proven


def test_a_node_that_was_stopped_looks_anew_before_it_gives_up(tmp_path: Path) -> None:
    """Another head may have left its word meanwhile: the node is not to end over the word of one that is gone."""
    node = SharedDirs([tmp_path])
    node.begin("word", 0.0)
    shared_dirs.write([tmp_path], "another head's")
    assert node.search(100.0) is None
    assert looked(node, 100.0, 100.0 + PATIENCE_SECONDS - 0.1) is None
    assert looked(node, 100.0 + PATIENCE_SECONDS - 0.1, 101.0 + PATIENCE_SECONDS) == tmp_path


def test_every_one_of_them_must_be(tmp_path: Path) -> None:
    both = [tmp_path / "run", tmp_path / "checkpoints"]
    both[0].mkdir()
    node = SharedDirs(both)
    shared_dirs.write(both[:1], "word")
    node.begin("word", 0.0)
    assert looked(node, 0.0, PATIENCE_SECONDS + 1.0) == both[1]
