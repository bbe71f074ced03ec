"""Checkpoints of nodes with directories of their own: the head commits in the store, and each node gets the step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.checkpoints import assert_whole, make_slots

from ftlaunch.checkpoints.stores import index
from ftlaunch.checkpoints.stores.folder import FolderStore
from ftlaunch.checkpoints.stores.index import Index
from ftlaunch.checkpoints.stores.node_checkpoints import HeadCheckpoints, NodeCheckpoints
from ftlaunch.checkpoints.stores.stored_checkpoints import OvertakenError, new_folder
from ftlaunch_contract.checkpoint import layout, seeds, skipped_samples, writer
from ftlaunch_contract.checkpoint.retention import PART
from ftlaunch_contract.checkpoint.tensor_file import Damaged


class Nodes:
    """A head with rank 0, and a node with rank 1; each has a directory of its own."""

    def __init__(self, root: Path, name: str = "head") -> None:
        self.root = root
        self.here = root / name / "checkpoints"
        self.there = root / "node" / "checkpoints"
        self.store = FolderStore(root / "bucket")
        self.head = HeadCheckpoints(self.store, self.here, job="net", owner=f"{name} pid 7")
        self.node = NodeCheckpoints(self.store, self.there, job="net", owner="")
        self.head.claim()

    def write(self, step: int, size: int = 64) -> tuple[str, Path]:
        """Write a step on both nodes, and upload the node's part. Returns the folder, and the head's directory."""
        slots = make_slots(self.root, step, size=size)
        folder = new_folder(step, self.head.term)
        staging = self.there / ".part-1"
        for rank, directory in enumerate((self.here, staging)):
            target = self.target(step, directory)
            writer.prepare(target)
            writer.write_shard_of(target, rank, slots[rank])
        self.node.upload(staging, folder)
        assert not staging.exists()
        return folder, layout.incomplete_dir(self.here, step)

    def target(self, step: int, directory: Path) -> writer.SaveTarget:
        return writer.SaveTarget(directory, step=step, why="interval", prefix="net", world_size=2)

    def save(self, *steps: int, keep: int = 5, size: int = 64) -> None:
        """What the head does once all nodes have written and uploaded."""
        for step in steps:
            self.commit(self.joined(step, size), keep)

    def joined(self, step: int, size: int = 64) -> tuple[int, str, Path]:
        """Have a step ready for the commit."""
        folder, directory = self.write(step, size)
        self.head.download_parts(folder, directory, [PART.format(rank=1)])
        writer.join(self.target(step, self.here))
        return step, folder, directory

    def commit(self, ready: tuple[int, str, Path], keep: int = 5) -> None:
        """Commit what `joined` has returned."""
        step, folder, directory = ready
        self.head.commit_step(step, folder, directory, keep=keep)
        writer.discard(self.target(step, self.here))

    def steps(self, directory: Path) -> list[int]:
        return [step for step, _ in layout.list_iterations(directory)]

    def objects(self) -> set[str]:
        return set(self.store.names("steps/"))

    @property
    def index(self) -> Index:
        content = self.store.read(index.NAME)
        assert content is not None
        return index.parse(content.data)

    def spoil(self, step: int, rank: int) -> None:
        """Change one byte of a shard in the store."""
        name = layout.shard_name("net", "opt", rank, 2)
        path = self.root / "bucket" / self.index.steps[step].files[name].object
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_a_step_that_all_nodes_have_uploaded_is_brought_to_all(nodes: Nodes) -> None:
    nodes.save(10, 20)
    assert nodes.objects() == nodes.index.objects, "the part files are no part of a checkpoint"
    assert nodes.steps(nodes.here) == nodes.steps(nodes.there) == []
    assert nodes.head.bring_newest() == []
    nodes.node.fetch(20, nodes.head.token)
    for directory in (nodes.here, nodes.there):
        assert_whole(layout.iteration_dir(directory, 20))
        assert nodes.steps(directory) == [20]
    nodes.save(30)
    nodes.head.bring_newest()
    nodes.node.fetch(30, nodes.head.token)
    assert nodes.steps(nodes.here) == nodes.steps(nodes.there) == [30], "older copies go"


def test_another_head_goes_on_and_the_one_before_commits_nothing(nodes: Nodes, tmp_path: Path) -> None:
    nodes.save(10)
    parts = nodes.joined(20)
    other = Nodes(tmp_path, "other")
    other.save(15)
    before = other.index
    with pytest.raises(OvertakenError, match="other pid 7 has taken over"):
        nodes.commit(parts)
    assert other.index == before
    third = Nodes(tmp_path, "third")
    assert third.objects() == third.index.objects, "what the first had uploaded is removed"
    other = third
    with pytest.raises(OvertakenError, match="third pid 7 has taken over"):
        nodes.node.fetch(10, nodes.head.token)
    nodes.node.fetch(15, other.head.token)
    assert nodes.steps(nodes.there) == [15]


def test_what_a_node_has_is_fetched_once_and_never_taken_unseen(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.save(10)
    nodes.node.fetch(10, nodes.head.token)
    fetched: list[str] = []
    read_pieces = FolderStore.read_pieces

    def counting(store: FolderStore, name: str, part: tuple[int, int] | None = None) -> Iterator[memoryview]:
        fetched.append(name)
        return read_pieces(store, name, part)

    monkeypatch.setattr(FolderStore, "read_pieces", counting)
    nodes.node.fetch(10, nodes.head.token)
    assert fetched == []
    shard = layout.iteration_dir(nodes.there, 10) / layout.shard_name("net", "model", 0, 2)
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    nodes.node.fetch(10, nodes.head.token)
    assert fetched, "a copy that is damaged here is fetched again"
    assert_whole(layout.iteration_dir(nodes.there, 10))


def test_a_copy_of_another_life_of_the_same_step_is_replaced(nodes: Nodes) -> None:
    """Taken out (`_is_copy`): a node resumes from a step of a training that the job has gone back behind."""
    nodes.save(10, 20)
    nodes.node.fetch(20, nodes.head.token)
    before = (layout.iteration_dir(nodes.there, 20) / layout.METADATA).read_bytes()
    nodes.head.put_aside(above=10)
    nodes.save(20, size=128)
    nodes.node.fetch(20, nodes.head.token)
    after = (layout.iteration_dir(nodes.there, 20) / layout.METADATA).read_bytes()
    assert after != before
    assert len(nodes.index.aside) == 1


def test_damage_in_the_store_is_found_by_the_head_and_by_a_node(nodes: Nodes) -> None:
    nodes.save(10, 20, 30)
    nodes.spoil(30, rank=1)
    (refused,) = nodes.head.bring_newest()
    assert refused.step == 30
    assert "does not match its checksum" in refused.why
    assert nodes.steps(nodes.here) == [20]
    nodes.spoil(20, rank=0)  # after the head has fetched it
    with pytest.raises(Damaged, match="does not match its checksum"):
        nodes.node.fetch(20, nodes.head.token)
    assert nodes.steps(nodes.there) == []
    refused = nodes.head.check(20)
    assert refused is not None
    assert refused.step == 20
    assert nodes.steps(nodes.here) == [], "the head does not keep a copy of it"
    assert nodes.head.bring_newest() == []
    assert nodes.steps(nodes.here) == [10]
    nodes.node.fetch(10, nodes.head.token)
    assert nodes.head.check(10) is None, "a node that cannot use this one is at fault itself"
    assert nodes.head.newest == 10


def test_a_failed_save_leaves_nothing_and_a_committed_one_is_never_deleted(nodes: Nodes) -> None:
    nodes.save(10)
    folder, _ = nodes.write(20)
    assert nodes.objects() > nodes.index.objects
    nodes.head.delete_folder(folder)
    writer.discard(nodes.target(20, nodes.here))
    assert nodes.objects() == nodes.index.objects
    committed = next(iter(nodes.index.steps[10].objects)).rpartition("/")[0]
    nodes.head.delete_folder(committed)
    assert nodes.objects() == nodes.index.objects


def test_retention_holds_for_what_all_nodes_have_uploaded(nodes: Nodes) -> None:
    nodes.save(10, 20, 30, keep=2)
    assert sorted(nodes.index.steps) == [20, 30]
    assert nodes.objects() == nodes.index.objects


def test_a_step_that_the_nodes_had_saved_together_is_stored_before_they_part(nodes: Nodes) -> None:
    """Taken out (`_store_newer`): the head resumes from a step that no node can get."""
    nodes.save(10)
    slots = make_slots(nodes.root, 20)
    target = nodes.target(20, nodes.here)
    writer.prepare(target)
    for rank, slot in enumerate(slots):
        writer.write_shard_of(target, rank, slot)
    writer.commit(target)
    assert nodes.head.bring_newest() == []
    assert sorted(nodes.index.steps) == [10, 20]
    nodes.node.fetch(20, nodes.head.token)
    assert_whole(layout.iteration_dir(nodes.there, 20))


def test_the_small_files_of_a_node_are_those_of_the_head(nodes: Nodes) -> None:
    nodes.there.mkdir(parents=True)
    skipped_samples.add(nodes.there, 3, 9)
    seeds.keep(nodes.there, 5)
    nodes.here.mkdir(parents=True, exist_ok=True)
    seeds.keep(nodes.here, 41)
    nodes.node.follow(nodes.head.beside())
    assert seeds.read(nodes.there) == 41
    assert skipped_samples.read(nodes.there) == []


def test_memory_of_a_life_counts_until_another_life_has_changed_what_is_stored(nodes: Nodes, tmp_path: Path) -> None:
    assert nodes.head.begin_life("a") == ("a",)
    nodes.save(10)
    second = Nodes(tmp_path, "second")
    assert second.head.begin_life("b") == ("a", "b"), "nothing has come of b yet"
    third = Nodes(tmp_path, "third")
    assert third.head.begin_life("c", adopted="b") == ("a", "b", "c"), "a head that takes b over"
    third.save(20)
    assert third.index.lives == ("b", "c")
    fourth = Nodes(tmp_path, "fourth")
    fourth.head.begin_life("d", adopted="b")
    fourth.head.put_aside(above=-1)
    assert fourth.index.lives == ("b", "d"), "it has begun anew"
    fifth = Nodes(tmp_path, "fifth")
    assert fifth.head.begin_life("e", adopted="c") == ("b", "d", "e"), "another life has gone on since"
    one_node = Nodes(tmp_path, "one_node")
    one_node.save(30)
    assert one_node.index.lives == (), "a job on one node has gone on since"
    last = Nodes(tmp_path, "last")
    assert last.head.begin_life("f", adopted="e") == ("f",)
