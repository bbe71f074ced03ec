"""Copies that do not count any more, where a file cannot be deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.memory.directory import COPIES, COPY_NOTE
from ftlaunch.nodes.peers.held.kept_copies import KeptCopies, KeptCopy


def keep(kept: KeptCopies, rank: int, step: int) -> Path:
    """Have a copy kept; returns its directory."""
    place, _ = kept.claim(rank)
    directory = kept.directory(rank, place)
    directory.mkdir(parents=True)
    (directory / "model.safetensors").touch()
    kept.commit([KeptCopy(rank, place, "run:0/2", step, 2, {}, "", {}, {}, {})], lambda: True)
    kept.release(rank)
    return directory


@pytest.fixture
def kept(tmp_path: Path) -> KeptCopies:
    kept = KeptCopies(tmp_path)
    kept.begin("run:0/2", None, [0])
    return kept


def hinder(directory: Path) -> None:
    """Have the note of a copy not be deleted."""
    note = directory / COPY_NOTE
    note.rename(directory / "aside")
    note.mkdir()


def let(directory: Path) -> None:
    """The reverse of `hinder`."""
    (directory / COPY_NOTE).rmdir()
    (directory / "aside").rename(directory / COPY_NOTE)


def test_a_copy_that_cannot_be_deleted_keeps_no_other(tmp_path: Path, kept: KeptCopies) -> None:
    """Taken out: the first that fails ends it, and a copier that begins later takes up the others."""
    copies = {keep(kept, 2, 4), keep(kept, 3, 4)}
    first, second = (tmp_path / COPIES).glob("*/*")
    assert copies == {first, second}
    hinder(first)
    with pytest.raises(OSError, match=COPY_NOTE):
        kept.forget()
    assert not second.exists()
    assert kept.find(2, "run:0/2", 4) is kept.find(3, "run:0/2", 4) is None, "they count no more"
    let(first)
    kept.forget()
    assert list((tmp_path / COPIES).glob("*/*")) == []


def test_a_place_is_claimed_without_the_note_of_what_could_not_be_deleted(kept: KeptCopies) -> None:
    """Taken out (only notes of copies that count): the note says that the next copy is whole while it is written."""
    directory = keep(kept, 2, 4)
    hinder(directory)
    with pytest.raises(OSError, match=COPY_NOTE):
        kept.forget()
    let(directory)
    place, _ = kept.claim(2)
    assert kept.directory(2, place) == directory
    assert not (directory / COPY_NOTE).exists()
