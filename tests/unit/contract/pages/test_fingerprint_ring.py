"""A ring of fingerprints outlives its writer, and a record is whole or has only the parts that were written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch_contract.pages.fingerprint_ring import (
    CAPACITY,
    FingerprintRing,
    StepPart,
    newest_step,
    read_copy,
    ring_path,
)

ALL = StepPart.BATCH | StepPart.RANDOM | StepPart.RATES | StepPart.LOSS | StepPart.SAMPLES


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[FingerprintRing]:
    ring = FingerprintRing(ring_path(tmp_path, 3), sample_bytes=16, names_checksum=7)
    yield ring
    ring.close()


def write(ring: FingerprintRing, step: int, loss: float = 0.5) -> None:
    ring.begin(step)
    ring.note_batch(step, 2**64 - step - 1)
    ring.note_loss(step, loss)
    at = ring.samples_at(step)
    ring.memory[at : at + 16] = bytes([step % 256]) * 16
    ring.finish(step, random=2**63 + step, rates=step, has_samples=True)


def test_a_record_is_read_as_it_was_written(tmp_path: Path, ring: FingerprintRing) -> None:
    write(ring, 5, loss=math.pi)
    again = FingerprintRing(ring_path(tmp_path, 3), sample_bytes=16, names_checksum=7)
    [found] = again.read().values()
    assert (found.step, found.parts, found.batch, found.random) == (5, ALL, 2**64 - 6, 2**63 + 5)
    assert (found.rates, found.loss, found.losses, found.samples) == (5, math.pi, 1, bytes([5]) * 16)
    again.close()


def test_a_step_under_way_has_only_the_parts_that_were_known(ring: FingerprintRing) -> None:
    ring.begin(9)
    assert 9 not in ring.read()
    ring.note_loss(9, 1.0)
    ring.note_loss(9, 2.0)
    found = ring.read()[9]
    assert (found.parts, found.loss, found.losses, found.samples) == (StepPart.LOSS, 2.0, 2, b"")


def test_the_newest_steps_are_kept(ring: FingerprintRing) -> None:
    for step in range(200):
        write(ring, step)
    assert sorted(ring.read()) == list(range(200 - CAPACITY, 200))


def test_what_follows_a_step_is_forgotten(ring: FingerprintRing) -> None:
    for step in range(10):
        write(ring, step)
    ring.forget_after(6)
    assert sorted(ring.read()) == list(range(7))


@pytest.mark.parametrize(("sample_bytes", "checksum"), [(24, 7), (16, 8)])
def test_of_a_ring_of_other_parameters_all_but_the_samples_is_read(
    tmp_path: Path, ring: FingerprintRing, sample_bytes: int, checksum: int
) -> None:
    """Taken out: without them a script that thaws a part of its model proves no resume from there on."""
    write(ring, 1)
    write(ring, 2)
    other = FingerprintRing(ring_path(tmp_path, 3), sample_bytes=sample_bytes, names_checksum=checksum)
    assert sorted(other.read()) == [1, 2]
    read = other.read()[1]
    assert (read.parts, read.random, read.loss, read.samples) == (ALL & ~StepPart.SAMPLES, 2**63 + 1, 0.5, b"")
    other.forget_after(1)
    assert sorted(other.read()) == [1]
    other.close()
    third = FingerprintRing(ring_path(tmp_path, 3), sample_bytes=sample_bytes, names_checksum=checksum)
    assert not third.read(), "the file has the new layout, and nothing was written since"
    third.close()


def test_the_newest_step_may_be_the_one_under_way(tmp_path: Path, ring: FingerprintRing) -> None:
    for step in range(1, 8):
        write(ring, step)
    ring.begin(8)
    assert newest_step(tmp_path, 3) == 7
    ring.note_loss(8, 0.1)
    assert newest_step(tmp_path, 3) == 8
    assert newest_step(tmp_path, 4) == -1, "there is no ring of that rank"


@pytest.mark.parametrize("damage", [b"", b"x" * 10, b"\0" * 4096])
def test_what_is_no_ring_tells_of_no_step(tmp_path: Path, damage: bytes) -> None:
    ring_path(tmp_path, 0).write_bytes(damage)
    assert newest_step(tmp_path, 0) == -1
    assert read_copy(ring_path(tmp_path, 0), sample_bytes=16, names_checksum=7) == {}


def test_a_copy_is_read_where_it_is_of_the_same_parameters(tmp_path: Path, ring: FingerprintRing) -> None:
    write(ring, 4)
    copy = tmp_path / "copy"
    copy.write_bytes(bytes(ring.memory))
    assert list(read_copy(copy, sample_bytes=16, names_checksum=7)) == [4]
    assert not read_copy(copy, sample_bytes=16, names_checksum=9)
    assert not read_copy(tmp_path / "none", sample_bytes=16, names_checksum=7)


def test_the_newest_step_is_known_without_the_samples(tmp_path: Path, ring: FingerprintRing) -> None:
    assert newest_step(tmp_path, 3) == -1, "an empty ring"
    assert newest_step(tmp_path, 4) == -1, "no ring"
    for step in range(70):
        write(ring, step)
    ring.begin(70)
    assert newest_step(tmp_path, 3) == 69, "nothing is known of the step under way"
    ring.note_loss(70, 1.0)
    assert newest_step(tmp_path, 3) == 70
    ring_path(tmp_path, 4).write_bytes(ring_path(tmp_path, 3).read_bytes()[:-8])
    assert newest_step(tmp_path, 4) == -1, "a file of another size"
