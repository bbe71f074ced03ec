"""Files of a stored checkpoint are read block by block, and every byte is compared with the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.checkpoints import MODEL, assert_whole, commit
from tests.support.stores import Machine

from ftlaunch.checkpoints.stores.fetching import fetch_files, find_damage
from ftlaunch.checkpoints.stores.folder import FolderStore
from ftlaunch.checkpoints.stores.index import StoredStep
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files import checksums

BLOCK = 4096
SIZE = 16 * 1000  # bytes of each shard: four blocks


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has stored step 10, in files of several blocks."""
    monkeypatch.setattr(checksums, "BLOCK", BLOCK)
    made = Machine(tmp_path, "first")
    made.start()
    commit(made.root, 10, size=SIZE)
    made.stored.publish(keep=5)
    return made


@pytest.fixture
def stored(machine: Machine) -> StoredStep:
    return machine.index.steps[10]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = layout.iteration_dir(tmp_path / "target", 10)
    made.mkdir(parents=True)
    return made


def test_a_large_file_is_read_in_several_parts(
    machine: Machine, stored: StoredStep, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, tuple[int, int] | None]] = []
    received: list[int] = []
    read_pieces = FolderStore.read_pieces

    def noting(store: FolderStore, name: str, part: tuple[int, int] | None = None) -> Iterator[memoryview]:
        asked.append((name, part))
        return read_pieces(store, name, part)

    monkeypatch.setattr(FolderStore, "read_pieces", noting)
    fetch_files(machine.store, stored, target, received.append)
    assert_whole(target, size=SIZE)
    assert sum(received) == stored.bytes
    for file in stored.files.values():
        parts = [part for name, part in asked if name == file.object]
        large = file.bytes > BLOCK
        assert sorted(filter(None, parts)) == (checksums.blocks(file.bytes) if large else [])
        assert large or parts == [None]


def flip(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip, "does not match its checksum"),
        (lambda content: content[:9000], "has 9000 bytes and not "),
        (lambda content: content[:100], "has 100 bytes and not "),
        (None, "is not in file:///"),
    ],
)
def test_a_damaged_object_is_found(
    damage: Callable[[bytes], bytes] | None, said: str, machine: Machine, stored: StoredStep, target: Path
) -> None:
    assert find_damage(machine.store, stored) is None
    path = machine.object_path(10, MODEL)
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(content))
    with pytest.raises(Damaged, match=said):
        fetch_files(machine.store, stored, target)
    assert said in (find_damage(machine.store, stored) or "")


def test_a_small_object_that_has_grown_is_found(machine: Machine, stored: StoredStep, target: Path) -> None:
    with machine.object_path(10, layout.COMMON).open("ab") as file:
        file.write(b" ")
    with pytest.raises(Damaged, match="bytes and not"):
        fetch_files(machine.store, stored, target)


def test_files_that_are_not_what_their_metadata_says_are_refused(
    machine: Machine, stored: StoredStep, target: Path
) -> None:
    """The index has the checksum of the object that lies there, and metadata.json another one: nobody can use it."""
    path = machine.object_path(10, MODEL)
    path.write_bytes(flip(path.read_bytes()))
    digest = checksums.of_blocks(checksums.of_bytes(path.read_bytes()))
    files = {**stored.files, MODEL: replace(stored.files[MODEL], digest=digest)}
    with pytest.raises(Damaged, match=f"{MODEL} does not match its checksum"):
        fetch_files(machine.store, replace(stored, files=files), target)
