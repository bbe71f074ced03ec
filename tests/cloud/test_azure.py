"""A checkpoint store in Azure Blob Storage: what one machine has stored another one brings, and only one commits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.azurite import azurite, environment, needs_azurite
from tests.support.checkpoints import assert_whole, commit

from ftlaunch.checkpoints.stores.fetching import fetch_object
from ftlaunch.checkpoints.stores.store import ChangedError, CheckpointStore, open_store
from ftlaunch.checkpoints.stores.stored_checkpoints import OvertakenError, StoredCheckpoints
from ftlaunch_contract.checkpoint import layout

pytestmark = needs_azurite


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with azurite(tmp_path_factory.mktemp("azure") / "server") as port:
        yield port


@pytest.fixture
def store(azure: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    for name, value in environment(azure).items():
        monkeypatch.setenv(name, value)
    return open_store(f"az://checkpoints/{tmp_path.name}/a.b")


def test_another_machine_brings_what_one_has_stored_and_then_commits_alone(
    store: CheckpointStore, tmp_path: Path
) -> None:
    one = StoredCheckpoints(store, tmp_path / "one" / "checkpoints", "net", "one (pid 7)")
    one.claim()
    for step in (10, 20):
        commit(tmp_path / "one", step)
    assert one.publish(5).steps == (20, 10)
    two = StoredCheckpoints(store, tmp_path / "two" / "checkpoints", "net", "two (pid 8)")
    two.claim()
    assert two.bring(-1) == []
    ((step, path),) = layout.list_iterations(tmp_path / "two" / "checkpoints")
    assert step == 20
    assert_whole(path)
    commit(tmp_path / "one", 30)
    with pytest.raises(OvertakenError, match=r"two \(pid 8\) has taken over"):
        one.publish(5)
    assert two.newest == 20


def test_conditions_are_kept(store: CheckpointStore) -> None:
    version = store.replace("x", b"1", None)
    with pytest.raises(ChangedError):
        store.replace("x", b"2", None)
    newer = store.replace("x", b"2", version)
    with pytest.raises(ChangedError):
        store.replace("x", b"3", version)
    found = store.read("x")
    assert found is not None
    assert (found.data, found.version) == (b"2", newer)


def test_a_large_file_goes_in_parts_and_comes_back(store: CheckpointStore, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(20 << 20))
    sizes: list[int] = []
    store.upload(tmp_path / "large", "steps/large", sizes.append)
    assert len(sizes) > 1
    fetch_object(store, "steps/large", tmp_path / "back", sizes.append)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()
    assert list(store.names("steps/")) == ["steps/large"]
    store.delete("steps/large")
    assert list(store.names("steps/")) == []
    with pytest.raises(FileNotFoundError):
        fetch_object(store, "steps/large", tmp_path / "back", sizes.append)


def test_a_container_that_is_missing_is_said_so(store: CheckpointStore) -> None:
    with pytest.raises(OSError, match="there is no bucket `nowhere` there"):
        open_store("az://nowhere/a").read("x")
