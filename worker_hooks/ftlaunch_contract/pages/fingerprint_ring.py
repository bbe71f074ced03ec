"""The fingerprints of a rank's newest steps: a ring in a file beside the rank's page, which outlives the rank.

Only the rank writes the file. A record has a fixed place (`step % capacity`) and is written word by word, so that a
rank which is killed leaves each part of a record whole or absent. The process that resumes the rank reads what the dead
one has left, and compares the steps that both of them made. Standard library only.

    header   8 words: magic, capacity (records), bytes of samples in a record, checksum of the samples' names; the step
             whose record the saver is to wait for, or 0; 3 spare
    record   8 words: step, parts (bits), batch, random numbers, learning rates, loss (a double), losses seen, spare;
             then the samples of the parameters, as bytes
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from ftlaunch_contract.files.regular_file import open_regular, read_regular

_MAGIC = 0x464E4750524E5431
_HEADER = struct.Struct("<8q")
_LAYOUT = struct.Struct("<4q")  # the words of the header that say how records lie
_AWAITED_STEP = 4  # word of the header
_RECORD = struct.Struct("<qqQQQdqq")
_STEP, _PARTS, _BATCH, _RANDOM, _RATES, _LOSS, _LOSSES = range(7)  # words of a record
CAPACITY = 64
"""records of a ring: how many of its newest steps a rank can prove"""


class StepPart(enum.IntFlag):
    """The parts of a step that its record holds. A step under way lacks the parts that its rank did not reach."""

    BATCH = 1
    RANDOM = 2
    RATES = 4
    LOSS = 8
    SAMPLES = 16
    ALL_RANDOM = 32  # the random numbers are those of all generators, and not of torch's alone


TELLING = StepPart.BATCH | StepPart.LOSS | StepPart.SAMPLES
"""parts of which a step must have one to verify anything: random numbers alone may agree because of equal seeds"""


@dataclass(frozen=True)
class StepFingerprint:
    """What one rank has recorded about one step."""

    step: int
    parts: StepPart
    batch: int = 0
    """fingerprint of the step's batches, 64 bits"""
    random: int = 0
    """fingerprint of the random generators' states at the step's end, 64 bits"""
    rates: int = 0
    """fingerprint of the learning rates at the step's end, 64 bits"""
    loss: float = 0.0
    """the last loss of the step"""
    losses: int = 0
    """number of losses in the step"""
    samples: bytes = b""
    """values of the parameters at the step's end, as bytes in the layout of the ring"""


def ring_path(directory: Path, rank: int) -> Path:
    """Return the ring file of a rank, in a directory of pages and snapshots."""
    return directory / f"fingerprints_{rank:05d}"


class FingerprintRing:
    """The ring as the rank that writes it sees it."""

    def __init__(self, path: Path, sample_bytes: int, names_checksum: int) -> None:
        """Map the file. A missing file, or one of another layout, is made anew.

        Records of the same layout stay. Of records of another layout `read` still returns all but the samples: those
        may be of parameters that are not trained any more.

        Args:
            path: the file, from `ring_path`.
            sample_bytes: bytes of samples in a record, a multiple of 8.
            names_checksum: checksum of the names of what is sampled; samples of another list cannot be compared.

        Raises:
            OSError: there is no room for the file, or it cannot be opened.
        """
        self._stride = _RECORD.size + sample_bytes
        size = _HEADER.size + CAPACITY * self._stride
        layout = _LAYOUT.pack(_MAGIC, CAPACITY, sample_bytes, names_checksum)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_same = os.fstat(fd).st_size == size and os.pread(fd, _LAYOUT.size, 0) == layout
            self._of_other_layout = {} if is_same else _records_without_samples(fd)
            if not is_same:
                os.ftruncate(fd, 0)
                os.posix_fallocate(fd, 0, size)  # ENOSPC here instead of SIGBUS later
                os.pwrite(fd, layout, 0)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.memory = memoryview(self._map)
        self._q = self.memory.cast("q")
        self._d = self.memory.cast("d")

    def await_step(self, step: int) -> None:
        """Ask the saver to wait for the record of `step`, which the rank makes after a stop was due; 0: not to wait."""
        self._q[_AWAITED_STEP] = step

    def samples_at(self, step: int) -> int:
        """Return the offset in `memory` of the samples of a step's record."""
        return _HEADER.size + (step % CAPACITY) * self._stride + _RECORD.size

    def _words_at(self, step: int) -> int:
        return (_HEADER.size + (step % CAPACITY) * self._stride) // 8

    def begin(self, step: int) -> None:
        """Empty the record of a step that begins. It takes the place of the record of an older step."""
        at = self._words_at(step)
        self._q[at + _PARTS] = 0
        self._q[at + _LOSSES] = 0
        self._q[at + _STEP] = step

    def note_batch(self, step: int, batch: int) -> None:
        """Record the fingerprint (64 bits) of the step's batches so far."""
        at = self._words_at(step)
        self._q[at + _BATCH] = _signed(batch)
        self._q[at + _PARTS] |= StepPart.BATCH

    def note_loss(self, step: int, loss: float) -> None:
        """Record a loss of a step that has begun; a later loss of the step replaces an earlier one."""
        at = self._words_at(step)
        self._d[at + _LOSS] = loss
        self._q[at + _LOSSES] += 1
        self._q[at + _PARTS] |= StepPart.LOSS

    def note_samples(self, step: int, samples: memoryview) -> None:
        """Record the samples of a step that has begun, unless a newer step has taken the record's place."""
        at = self._words_at(step)
        if self._q[at + _STEP] == step:
            begin = self.samples_at(step)
            self.memory[begin : begin + len(samples)] = samples
            self._q[at + _PARTS] |= StepPart.SAMPLES

    def finish(
        self, step: int, *, random: int, rates: int, has_samples: bool, has_all_generators: bool = False
    ) -> None:
        """Record what is known at the end of a step.

        Args:
            step: a step that has begun.
            random: fingerprint of the random generators' states, 64 bits.
            rates: fingerprint of the learning rates, 64 bits.
            has_samples: whether the samples already lie at `samples_at`.
            has_all_generators: whether `random` covers all generators, and not torch's alone.
        """
        at = self._words_at(step)
        self._q[at + _RANDOM] = _signed(random)
        self._q[at + _RATES] = _signed(rates)
        parts = StepPart.RANDOM | StepPart.RATES
        parts |= StepPart.SAMPLES if has_samples else StepPart(0)
        parts |= StepPart.ALL_RANDOM if has_all_generators else StepPart(0)
        self._q[at + _PARTS] = self._q[at + _PARTS] & ~StepPart.ALL_RANDOM | parts

    def read(self) -> dict[int, StepFingerprint]:
        """Return the records as they are now: step -> record."""
        return {**self._of_other_layout, **_records(self.memory)}

    def record(self, step: int) -> StepFingerprint:
        """Return the record of a step that has begun, as it is now."""
        begin = _HEADER.size + (step % CAPACITY) * self._stride
        return _record(self.memory, begin, self._stride)

    def forget_after(self, step: int) -> None:
        """Empty the records of all steps after `step`; of all steps for a negative one."""
        kept = {number: record for number, record in self._of_other_layout.items() if number <= step}
        self._of_other_layout = kept
        for place in range(CAPACITY):
            at = self._words_at(place)
            if self._q[at + _STEP] > step:
                self._q[at + _PARTS] = 0

    def close(self) -> None:
        """Unmap the file, which stays."""
        self._q.release()
        self._d.release()
        self.memory.release()
        self._map.close()


def read_copy(path: Path, *, sample_bytes: int, names_checksum: int) -> dict[int, StepFingerprint]:
    """Return the records of a copy of a ring: step -> record; empty for a missing copy or one of another layout.

    Args:
        path: the copy.
        sample_bytes: bytes of samples in a record of the layout that is wanted.
        names_checksum: checksum of the names of what is sampled there.
    """
    try:
        content = read_regular(path, _HEADER.size + CAPACITY * (_RECORD.size + sample_bytes))
    except OSError:
        return {}
    layout = _LAYOUT.pack(_MAGIC, CAPACITY, sample_bytes, names_checksum)
    return _records(memoryview(content)) if content.startswith(layout) else {}


def is_step_awaited(path: Path) -> bool:
    """Whether a rank has asked, with `await_step`, to wait for a record of its ring."""
    try:
        with open_regular(path) as file:
            header = file.read(_HEADER.size)
    except OSError:
        return False
    return len(header) == _HEADER.size and bool(_HEADER.unpack(header)[_AWAITED_STEP])


def newest_step(directory: Path, rank: int) -> int:
    """Return the newest step, finished or not, with a record that can be compared; -1 where there is no such record.

    The samples, which may be large, are not read.

    Args:
        directory: the directory of pages and snapshots.
        rank: the rank whose ring is read; a ring that is missing or cannot be read has no records.
    """
    try:
        fd = os.open(ring_path(directory, rank), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return -1
        magic, capacity, sample_bytes = _HEADER.unpack(header)[:3]
        stride = _RECORD.size + sample_bytes
        if magic != _MAGIC or os.fstat(fd).st_size != _HEADER.size + capacity * stride:
            return -1
        newest = -1
        for place in range(capacity):
            step, parts = _RECORD.unpack(os.pread(fd, _RECORD.size, _HEADER.size + place * stride))[:2]
            if parts & TELLING and step % capacity == place:
                newest = max(newest, step)
        return newest
    finally:
        os.close(fd)


def _records(memory: memoryview) -> dict[int, StepFingerprint]:
    """Return the records of a whole ring: step -> record; empty where `memory` is no ring."""
    if len(memory) < _HEADER.size:
        return {}
    magic, capacity, sample_bytes = _HEADER.unpack_from(memory)[:3]
    stride = _RECORD.size + sample_bytes
    if magic != _MAGIC or len(memory) != _HEADER.size + capacity * stride:
        return {}
    found = {}
    for place in range(capacity):
        record = _record(memory, _HEADER.size + place * stride, stride)
        if record.parts and record.step % capacity == place:
            found[record.step] = record
    return found


def _records_without_samples(fd: int) -> dict[int, StepFingerprint]:
    """Return all but the samples of the records of a ring file of any layout."""
    size = os.fstat(fd).st_size
    records = _records(memoryview(os.pread(fd, size, 0)))
    return {
        step: replace(record, parts=record.parts & ~StepPart.SAMPLES, samples=b"")
        for step, record in records.items()
        if record.parts & ~StepPart.SAMPLES
    }


def _record(memory: memoryview, begin: int, stride: int) -> StepFingerprint:
    step, parts, batch, random, rates, loss, losses, _ = _RECORD.unpack_from(memory, begin)
    samples = bytes(memory[begin + _RECORD.size : begin + stride]) if parts & StepPart.SAMPLES else b""
    return StepFingerprint(
        step=step, parts=StepPart(parts), batch=batch, random=random, rates=rates, loss=loss, losses=losses,
        samples=samples,
    )  # fmt: skip


def _signed(word: int) -> int:
    """Return 64 unsigned bits as the signed integer that a word holds."""
    return word - (word >> 63 << 64)
