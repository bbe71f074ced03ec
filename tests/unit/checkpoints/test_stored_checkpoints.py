"""Checkpoints in a store: a machine that has none goes on from there, and one that was overtaken commits nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support import checkpoints
from tests.support.checkpoints import assert_whole, commit
from tests.support.stores import Machine

from ftlaunch.checkpoints.stores import index, stored_checkpoints
from ftlaunch.checkpoints.stores.fetching import fetch_object
from ftlaunch.checkpoints.stores.folder import FolderStore
from ftlaunch.checkpoints.stores.store import ChangedError
from ftlaunch.checkpoints.stores.stored_checkpoints import ForeignStoreError, OvertakenError
from ftlaunch_contract.checkpoint import layout, seeds


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Machine]:
    return lambda name: Machine(tmp_path, name)


def test_an_empty_machine_goes_on_from_the_newest_step(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    assert first.start() == []
    seeds.keep(first.directory.parent, 1)  # not beside the checkpoints: of no use elsewhere
    seeds.keep(first.directory, 41)
    first.save(10, 20)
    second = machine("second")
    assert second.start() == []
    assert second.steps == [20]
    assert_whole(layout.iteration_dir(second.directory, 20))
    assert seeds.read(second.directory) == 41
    second.save(30)
    third = machine("third")
    third.start()
    assert third.steps == [30]
    assert sorted(third.index.steps) == [10, 20, 30]
    assert third.objects == third.index.objects


def test_a_machine_that_was_overtaken_commits_nothing(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10)
    second = machine("second")
    second.start()
    before = second.index
    with pytest.raises(OvertakenError, match="second pid 7 has taken over the checkpoints in file:///"):
        first.save(20)
    assert second.index == before
    second.save(20)
    third = machine("third")
    third.start()
    assert third.objects == third.index.objects, "what the first had uploaded is removed"


def test_steps_that_a_machine_saved_before_another_one_went_on_are_not_taken_up(
    machine: Callable[[str], Machine],
) -> None:
    """Taken out: the first machine, come back, goes on from a step of a training that was begun anew elsewhere."""
    first = machine("first")
    first.start()
    first.save(10)
    commit(first.root, 20)  # the machine is taken away before this is published
    second = machine("second")
    second.start()
    layout.supersede(second.directory)  # the job begins anew
    second.stored.put_aside(above=-1)
    second.save(5)
    back = machine("first")
    assert back.steps == [20, 10]
    assert back.start() == [20, 10]
    assert back.steps == [5]
    assert sorted(path.name for path in (back.directory / layout.QUARANTINE).iterdir() if path.is_dir()) == [
        "iteration_0000010",
        "iteration_0000020",
    ]
    assert len(back.index.aside) == 1, "nothing is lost in the store, either"


def test_the_same_machine_goes_on_from_what_only_it_has(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10)
    commit(first.root, 20)
    again = machine("first")
    assert again.start() == []
    assert again.steps == [20, 10]
    again.stored.publish(5)
    assert sorted(again.index.steps) == [10, 20]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_claim_that_was_cut_off_costs_nothing(
    is_committed: bool, machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine("first")
    first.start()
    first.save(10)
    commit(first.root, 20)
    cut = machine("first")
    plain = cut.store.replace

    def replace(name: str, data: bytes, version: str | None) -> str:
        if name != index.NAME:
            return plain(name, data, version)
        if is_committed:
            plain(name, data, version)
        raise OSError(5, "the connection is gone")

    monkeypatch.setattr(cut.store, "replace", replace)
    with pytest.raises(OSError, match="the connection is gone"):
        cut.start()
    again = machine("first")
    assert again.start() == []
    assert again.steps == [20, 10]


def test_an_answer_that_was_lost_is_no_overtaking(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has committed, and the retry of its client finds another version than the one that it gives."""
    first = machine("first")
    first.start()
    plain = first.store.replace

    def replace(name: str, data: bytes, version: str | None) -> str:
        plain(name, data, version)
        return plain(name, data, version)

    monkeypatch.setattr(first.store, "replace", replace)
    first.save(10)
    assert sorted(first.index.steps) == [10]


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_commit_that_is_never_answered_is_no_overtaking(
    is_carried_out: bool, machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out (no look at the index): the next commit meets its own version, and takes itself for overtaken."""
    first = machine("first")
    first.start()
    first.save(10)
    plain = first.store.replace
    failed: list[str] = []

    def replace(name: str, data: bytes, version: str | None) -> str:
        if failed:
            return plain(name, data, version)
        failed.append(name)
        if is_carried_out:
            plain(name, data, version)
        raise OSError(5, "no answer")

    monkeypatch.setattr(first.store, "replace", replace)
    with pytest.raises(OSError, match="no answer"):
        first.save(20)
    first.save(30)
    assert failed
    assert sorted(first.index.steps) == [10, 20, 30]
    assert first.objects == first.index.objects, "what was uploaded and not committed is deleted"


def test_a_damaged_step_is_refused_and_the_one_before_is_taken(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10, 20, 30)
    first.flip_a_bit(30, checkpoints.MODEL)
    first.object_path(20, "common.json").unlink()
    second = machine("second")
    second.start()
    assert [refused.step for refused in second.refused] == [30, 20]
    assert checkpoints.MODEL in second.refused[0].why
    assert "common.json is not in file:///" in second.refused[1].why
    assert second.steps == [10]
    assert sorted(second.index.refused) == [20, 30]
    second.save(20)
    assert sorted(second.index.steps) == [10, 20]
    assert not second.index.refused, "step 20 was made again, and 30 is put aside"
    third = machine("third")
    third.start()
    assert third.steps == [20]


def test_nothing_is_brought_that_is_not_newer(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10)
    second = machine("second")
    second.start(newer_than=10)
    assert second.steps == []


def test_retention_is_that_of_the_directory_and_of_the_settings(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10, 20, 30)
    second = machine("second")
    second.start()
    second.save(40, keep=2)
    assert sorted(second.index.steps) == [30, 40]
    assert second.objects == second.index.objects


def test_another_jobs_store_is_refused(tmp_path: Path) -> None:
    Machine(tmp_path, "first").start()
    other = Machine(tmp_path, "second", job="other")
    with pytest.raises(ForeignStoreError, match="it has the checkpoints of job net, and this is job other"):
        other.start()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"version": 2}', b'{"version": 1, "steps": {"x": {}}}', b"\xff", b"[" * 100_000]
)
def test_an_index_that_cannot_be_read_is_refused_and_stays(data: bytes, machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.store.replace(index.NAME, data, None)
    with pytest.raises(ForeignStoreError, match=r"cannot use file://.*/ftlaunch\.json: "):
        first.start()
    content = first.store.read(index.NAME)
    assert content is not None
    assert content.data == data


def test_an_index_is_what_it_was(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10, 20)
    first.stored.put_aside(above=10)
    assert index.parse(index.dump(first.index)) == first.index
    damaged = json.loads(index.dump(first.index))
    damaged["steps"]["10"]["files"]["common.json"]["object"] = "../elsewhere"
    with pytest.raises(ValueError, match="is no name of an object"):
        index.parse(json.dumps(damaged).encode())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    return FolderStore(tmp_path / "bucket")


def test_only_the_expected_version_is_replaced(store: FolderStore) -> None:
    first = store.replace("a", b"1", None)
    with pytest.raises(ChangedError):
        store.replace("a", b"2", None)
    second = store.replace("a", b"2", first)
    with pytest.raises(ChangedError):
        store.replace("a", b"3", first)
    assert store.read("a") == (b"2", second)
    assert store.read("b") is None


def test_an_upload_is_bounded_and_whole(store: FolderStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 100_000)
    spent: list[int] = []
    store.upload(source, "steps/a/b", spent.append)
    assert len(spent) > 1
    assert sum(spent) == source.stat().st_size
    fetch_object(store, "steps/a/b", tmp_path / "copy", lambda count: None)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.upload(source, "steps/a/c", stop)
    assert list(store.names("steps/")) == ["steps/a/b"]
    store.delete("steps/a/b")
    store.delete("steps/a/b")
    assert not list(store.names(""))
    assert stored_checkpoints.NOTE not in set(store.names(""))


def test_what_a_killed_process_has_left_half_written_goes_with_the_next_claim(
    machine: Callable[[str], Machine]
) -> None:  # fmt: skip
    """Taken out (names of unfinished files): they stay for ever, as large as a checkpoint each."""
    first = machine("first")
    half = Path(first.store.where.removeprefix("file://")) / "steps/iteration_0000007-1-abcd/.unfinished-99-shard"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half of it")
    first.start()
    assert not half.exists()
    assert not half.parent.exists()


@pytest.mark.parametrize("ignored", ["absent", "unchanged"])
def test_a_store_that_ignores_a_condition_is_refused_and_keeps_its_index(
    ignored: str, machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried: without the probe, the claim succeeds."""
    first = machine("first")
    plain = first.store.replace

    def replace(name: str, data: bytes, version: str | None) -> str:
        found = first.store.read(name)
        if (ignored == "absent") == (version is None):
            version = None if found is None else found.version
        return plain(name, data, version)

    monkeypatch.setattr(first.store, "replace", replace)
    with pytest.raises(OSError, match="its server does not keep to conditions"):
        first.start()
    assert not list(first.store.names("")), "not claimed, and no probe is left"


def test_a_claim_deletes_only_what_was_there_before_it(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first machine is frozen behind its claim, overtaken, and thawed. Listed after the claim, 10 is gone."""
    first = machine("first")
    second = machine("second")
    plain = first.store.replace
    frozen: list[str] = []

    def replace(name: str, data: bytes, version: str | None) -> str:
        done = plain(name, data, version)
        if name == index.NAME:
            frozen.append(name)
            second.start()
            second.save(10)
        return done

    (first.bucket / "steps/leftover").mkdir(parents=True)
    (first.bucket / "steps/leftover/a").write_bytes(b"of before")
    monkeypatch.setattr(first.store, "replace", replace)
    first.stored.claim()
    assert frozen
    assert second.objects == second.index.objects, "and what was left before is deleted"
    third = machine("third")
    third.start()
    assert third.steps == [10]
    assert not third.refused


def test_processes_that_claim_at_the_same_moment_do_not_delete_each_others_probes(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried: with the probe deleted, the second says that the server does not keep to conditions."""
    first = machine("first")
    second = machine("second")
    plain = second.store.replace
    probed: list[str] = []

    def replace(name: str, data: bytes, version: str | None) -> str:
        done = plain(name, data, version)
        if name.startswith(index.PROBE) and not probed:
            probed.append(name)
            first.stored.claim()
        return done

    monkeypatch.setattr(second.store, "replace", replace)
    with pytest.raises(OvertakenError, match="first pid 7 has taken over"):
        second.stored.claim()
    assert probed
    machine("third").start()
    assert not first.objects, "probes of an earlier term are leftovers"


def test_a_process_goes_on_in_the_place_of_one_that_has_died(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10)
    token = first.stored.token
    (first.bucket / "steps/torn").mkdir(parents=True)
    (first.bucket / "steps/torn/a").write_bytes(b"half a file")
    successor = machine("first")
    successor.stored.claim_again(token, keep_uploads=False)
    assert successor.objects == successor.index.objects, "what the dead process had begun is deleted"
    assert successor.stored.token == token
    successor.save(20)
    assert sorted(successor.index.steps) == [10, 20]
    with pytest.raises(OvertakenError):
        first.save(30)
    assert machine("first").start() == [], "no other machine has kept the store in between"


def test_uploads_of_other_nodes_are_kept_when_a_process_goes_on_for_a_dead_one(
    machine: Callable[[str], Machine],
) -> None:
    first = machine("first")
    first.start()
    (first.bucket / "steps/of_a_node").mkdir(parents=True)
    (first.bucket / "steps/of_a_node/a").write_bytes(b"a shard")
    machine("first").stored.claim_again(first.stored.token, keep_uploads=True)
    assert first.objects == {"steps/of_a_node/a"}


def test_a_process_does_not_go_on_where_another_machine_has_taken_over(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10)
    second = machine("second")
    second.start()
    before = second.index
    with pytest.raises(OvertakenError, match="second pid 7 has taken over"):
        machine("first").stored.claim_again(first.stored.token, keep_uploads=False)
    assert second.index == before


def test_a_late_commit_of_the_dead_process_does_not_stop_the_one_that_goes_on(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out: the job is told that another machine has taken over, and stops for good."""
    first = machine("first")
    first.start()
    token = first.stored.token
    successor = machine("first")
    plain = successor.store.replace
    late: list[str] = []

    def replace(name: str, data: bytes, version: str | None) -> str:
        if name == index.NAME and not late:
            late.append(name)
            first.save(10)
        return plain(name, data, version)

    monkeypatch.setattr(successor.store, "replace", replace)
    successor.stored.claim_again(token, keep_uploads=False)
    assert late
    assert sorted(successor.index.steps) == [10]
    successor.save(20)
    assert sorted(successor.index.steps) == [10, 20]


def test_a_step_that_only_the_store_has_is_brought(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10, 20, 30)
    second = machine("second")
    second.start()
    assert second.steps == [30]
    assert second.stored.bring_step(10).steps == (10,)
    assert second.stored.bring_step(10).steps == ()
    assert second.stored.bring_step(15).steps == ()
    assert second.steps == [30, 10]
    assert_whole(layout.iteration_dir(second.directory, 10))


def test_the_newest_better_step_is_brought(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    first.save(10, 20, 30)
    for step in (20, 30):
        shutil.rmtree(layout.iteration_dir(first.directory, step))
    first.flip_a_bit(30, checkpoints.OPT)
    found = first.stored.bring_better(than=10, healthy_before=None)
    assert found.steps == (20,)
    assert [refused.step for refused in found.refused] == [30]
    assert_whole(layout.iteration_dir(first.directory, 20))
    assert first.stored.bring_better(than=20, healthy_before=None).steps == ()
    assert first.stored.bring_better(than=-1, healthy_before=15).steps == (), "none is marked healthy"


def test_only_a_process_of_another_directory_may_still_run(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    assert first.stored.find_other_owner() is None
    first.start()
    assert machine("first").stored.find_other_owner() is None
    owner = machine("second").stored.find_other_owner()
    assert owner is not None
    assert owner.claim == first.stored.token
