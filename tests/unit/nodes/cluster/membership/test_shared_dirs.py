"""A node finds the head's word in the directories that it shares, and finds out which are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.nodes.cluster.membership import shared_dirs
from ftlaunch.nodes.cluster.membership.shared_dirs import NAME, PATIENCE_SECONDS, SharedDirs


def of_network(*directories: Path) -> SharedDirs:
    """Return a search in directories in which files of other machines may show late."""
    return SharedDirs(directories, lambda _: False)


def test_what_is_shared_is_proven_once(tmp_path: Path) -> None:
    shared_dirs.write([tmp_path], "one")
    node = of_network(tmp_path)
    assert not node.is_time_over(0.0), "no head has named a word yet"
    assert not node.are_known
    node.begin("one", 0.0)
    assert not node.is_time_over(0.0)
    assert node.are_known and node.is_shared(tmp_path)
    shared_dirs.forget([tmp_path])
    node.begin("another", 100.0)
    assert not node.is_time_over(200.0), "another head need not ask again"
    assert node.is_shared(tmp_path)
    assert not (tmp_path / NAME).exists()


def searched(node: SharedDirs, begin: float, end: float) -> bool:
    """Whether the time is over at the end, where it searches every half second."""
    while begin < end:
        node.is_time_over(begin)
        begin += 0.5
    return node.is_time_over(end)


def test_a_file_may_show_late_and_not_too_late(tmp_path: Path) -> None:
    node = of_network(tmp_path)
    node.begin("word", 0.0)
    assert not searched(node, 0.0, PATIENCE_SECONDS - 0.1)
    (tmp_path / NAME).write_text("another head's")
    assert node.is_time_over(PATIENCE_SECONDS + 0.1)
    shared_dirs.write([tmp_path], "word")
    assert not node.is_time_over(PATIENCE_SECONDS + 0.2)
    assert node.is_shared(tmp_path)


def test_a_node_that_was_stopped_looks_anew_before_it_gives_up(tmp_path: Path) -> None:
    """Another head may have left its word meanwhile: that of one that is gone says nothing."""
    node = of_network(tmp_path)
    node.begin("word", 0.0)
    shared_dirs.write([tmp_path], "another head's")
    assert not node.is_time_over(100.0)
    assert not searched(node, 100.0, 100.0 + PATIENCE_SECONDS - 0.1)
    assert searched(node, 100.0 + PATIENCE_SECONDS - 0.1, 101.0 + PATIENCE_SECONDS)


def test_each_directory_is_shared_or_not(tmp_path: Path) -> None:
    run_dir, checkpoints = tmp_path / "run", tmp_path / "checkpoints"
    run_dir.mkdir()
    node = of_network(run_dir, checkpoints)
    shared_dirs.write([run_dir], "word")
    node.begin("word", 0.0)
    assert searched(node, 0.0, PATIENCE_SECONDS + 1.0)
    assert not node.are_known
    node.give_up()
    assert node.are_known
    assert (node.is_shared(run_dir), node.is_shared(checkpoints), list(node.apart)) == (True, False, [checkpoints])


def test_what_was_not_shared_is_searched_again_for_the_next_head(tmp_path: Path) -> None:
    node = of_network(tmp_path)
    node.begin("word", 0.0)
    node.give_up()
    node.begin("of the next", 10.0)
    assert not node.are_known
    shared_dirs.write([tmp_path], "of the next")
    assert not node.is_time_over(10.0)
    assert node.is_shared(tmp_path)


def test_on_a_disk_of_this_machine_no_file_comes_late(tmp_path: Path) -> None:
    """Taken out: each job of nodes that share nothing begins five seconds later."""
    assert shared_dirs.is_of_one_machine(tmp_path), "tests run on such a disk"
    node = SharedDirs([tmp_path])
    node.begin("word", 7.0)
    assert node.is_time_over(7.0)
    assert node.until == 7.0


def test_where_another_head_has_left_its_word_even_a_disk_of_this_machine_is_searched_for_long(tmp_path: Path) -> None:
    shared_dirs.write([tmp_path], "another head's")
    node = SharedDirs([tmp_path])
    node.begin("word", 7.0)
    assert not node.is_time_over(7.0)


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "lustre", "9p"])
def test_file_systems_of_a_network_are_none_of_one_machine(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mount:
        mountpoint, fstype = str(tmp_path), kind

    found = [*shared_dirs.psutil.disk_partitions(all=True), Mount()]
    monkeypatch.setattr(shared_dirs.psutil, "disk_partitions", lambda all: found)
    assert not shared_dirs.is_of_one_machine(tmp_path / "run")
    assert shared_dirs.is_of_one_machine(tmp_path.parent)
