"""Bringing the checkpoint that a job begins with from a store, or from a bucket that another program has filled."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import checkpoints
from tests.support.checkpoints import assert_whole, content_of
from tests.support.stores import Machine

from ftlaunch.checkpoints.stores.load_fetcher import Fetched, LoadFetcher, files_of, split_step
from ftlaunch.checkpoints.stores.load_note import NOTE, LoadNote, read_note
from ftlaunch.checkpoints.stores.stored_catalog import StoreRefused
from ftlaunch_contract.checkpoint import initial, layout, seeds


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, "first")
    made.start()
    seeds.keep(made.directory, 41)
    made.save(10, 20, 30)
    return made


def fetch(address: str, target: Path) -> Fetched:
    return LoadFetcher(address, target, say=lambda line: None).fetch()


def test_the_newest_step_of_a_store_is_brought(machine: Machine, tmp_path: Path) -> None:
    target = tmp_path / "loaded/bucket"
    fetched = fetch(machine.address, target)
    assert fetched.steps == [30]
    assert_whole(layout.iteration_dir(target, 30))
    assert initial.find(target) == (30, [])
    assert seeds.read(target) == 41
    assert fetch(machine.address, target).steps == [30], "brought once more, for a start that was cut off"


def test_one_step_of_a_store_is_brought(machine: Machine, tmp_path: Path) -> None:
    target = tmp_path / "loaded/iteration_0000010"
    assert fetch(f"{machine.address}/iteration_0000010", target).steps == [10]
    assert_whole(target)
    assert initial.find(target) == (10, [])
    with pytest.raises(StoreRefused, match=r"there is no checkpoint of step 11 in .*; it has 10, 20, 30"):
        fetch(f"{machine.address}/iteration_0000011", tmp_path / "loaded/iteration_0000011")


def test_a_damaged_step_is_not_begun_with(machine: Machine, tmp_path: Path) -> None:
    machine.flip_a_bit(30, checkpoints.MODEL)
    target = tmp_path / "loaded/bucket"
    fetched = fetch(machine.address, target)
    assert fetched.steps == [20]
    assert [path.name for path in sorted(target.iterdir())] == ["iteration_0000020", "seed.json"]
    [refused] = fetched.refused
    assert f"step 30 of {machine.address} is damaged: steps/iteration_0000030-1-" in refused
    assert f"/{checkpoints.MODEL} does not match" in refused
    with pytest.raises(StoreRefused, match="step 30 there is damaged"):
        fetch(f"{machine.address}/iteration_0000030", tmp_path / "loaded/iteration_0000030")
    assert sorted(machine.index.refused) == [], "another job's store is only read"


def test_what_another_program_has_put_there_is_brought_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "models/net"
    (source / "inner").mkdir(parents=True)
    (source / ".metadata").write_bytes(b"torch's")
    (source / "__0_0.distcp").write_bytes(b"0" * 100)
    (source / "inner/a").write_bytes(b"1")
    target = tmp_path / "loaded/net"
    assert fetch(f"file://{source}", target) == Fetched(files=3, bytes=108)
    assert content_of(target) == content_of(source)
    single = tmp_path / "loaded/__0_0.distcp"
    assert fetch(f"file://{source}/__0_0.distcp", single) == Fetched(files=1, bytes=100)
    assert single.read_bytes() == b"0" * 100
    assert not target.exists(), "the folder is that of one start"
    with pytest.raises(StoreRefused, match="there is no such object, and none below it"):
        fetch(f"file://{source}/nothing", tmp_path / "loaded/nothing")


def test_a_step_is_the_last_part_of_an_address() -> None:
    assert split_step("s3://bucket/a/iteration_0000120") == ("s3://bucket/a", 120)
    assert split_step("s3://bucket/a") == ("s3://bucket/a", None)
    assert split_step("s3://bucket/iteration_12") == ("s3://bucket/iteration_12", None)


def test_objects_that_stand_for_folders_are_left_out() -> None:
    assert files_of(["a/b", "a", "c"]) == ["a/b", "c"]


@pytest.mark.parametrize("name", ["../a", "a/../b", "/a", "a//b", "a/.", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(StoreRefused, match="has a name that no file can have"):
        files_of(["good", name])


def like(address: str, target: Path, note: LoadNote) -> Fetched:
    return LoadFetcher(address, target, say=lambda line: None, like=note).fetch_like()


def note_of(target: Path) -> LoadNote:
    note = read_note(target.parent)
    assert note is not None
    return note


def test_another_machine_brings_the_step_that_the_first_has_brought(machine: Machine, tmp_path: Path) -> None:
    """The store has a newer one by then. What is there and whole is not brought again."""
    first = tmp_path / "first/loaded/bucket"
    second = tmp_path / "second/loaded/bucket"
    fetch(machine.address, first)
    note = note_of(first)
    assert (note.address, note.steps, list(note.beside)) == (machine.address, (30,), ["seed.json"])
    machine.save(40)
    assert like(machine.address, second, note).steps == [30]
    assert_whole(layout.iteration_dir(second, 30))
    assert initial.find(second) == (30, [])
    assert note_of(second) == note
    assert seeds.read(second) == 41
    assert like(machine.address, second, note).steps == [], "it is there"
    file = layout.iteration_dir(second, 30) / checkpoints.MODEL
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert like(machine.address, second, note).steps == [30], "it was damaged"
    assert_whole(layout.iteration_dir(second, 30))


def test_one_step_is_brought_as_the_first_machine_has_it(machine: Machine, tmp_path: Path) -> None:
    address = f"{machine.address}/iteration_0000010"
    fetch(address, tmp_path / "first/loaded/iteration_0000010")
    note = note_of(tmp_path / "first/loaded/iteration_0000010")
    target = tmp_path / "second/loaded/iteration_0000010"
    assert like(address, target, note).steps == [10]
    assert_whole(target)
    assert like(address, target, note).steps == []


def test_what_has_changed_meanwhile_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """Taken out (the comparison): two nodes of one job begin with two models."""
    (tmp_path / "bucket/net").mkdir(parents=True)
    weights = tmp_path / "bucket/net/weights.bin"
    weights.write_bytes(b"of yesterday")
    address = f"file://{tmp_path}/bucket/net"
    fetch(address, tmp_path / "first/loaded/net")
    note = note_of(tmp_path / "first/loaded/net")
    assert note.steps == ()
    assert like(address, tmp_path / "second/loaded/net", note).files == 1
    weights.write_bytes(b"of today    ")
    assert like(address, tmp_path / "second/loaded/net", note).files == 0, "what is there is as on the first machine"
    with pytest.raises(StoreRefused, match="it has changed since the head of the job has brought it"):
        like(address, tmp_path / "third/loaded/net", note)
    assert not (tmp_path / "third/loaded").exists()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"address": 1, "steps": [], "beside": {}, "digest": ""}', b'{"address": "a", "steps": 7}']
)
def test_a_note_that_is_none_is_no_note(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NOTE).write_bytes(content)
    assert read_note(tmp_path) is None
