"""Where holes are made in logs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from ftlaunch.history.rank_logs import LogReader, read_piece
from ftlaunch.ranks import log_holes
from ftlaunch.ranks.log_marks import LogMarks

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("length", "newest", "done", "found"),
    [
        (0, MIB, 0, []),
        (2 * MIB, MIB, 0, []),
        (3 * MIB - 1, MIB, 0, []),
        (3 * MIB, MIB, 0, [(MIB, MIB)]),
        (9 * MIB + 5, 2 * MIB, 0, [(MIB, 6 * MIB)]),
        (9 * MIB + 5, 2 * MIB, 7 * MIB, []),
        (10 * MIB, 2 * MIB, 7 * MIB, [(7 * MIB, MIB)]),
    ],
)
def test_the_beginning_and_the_newest_are_kept(
    length: int, newest: int, done: int, found: list[tuple[int, int]]
) -> None:
    assert log_holes.to_punch(length, newest, done) == found


@pytest.mark.parametrize(
    ("ends", "done", "kept"),
    [
        ([0], 0, []),
        ([MIB // 2], 0, []),
        ([4 * MIB], 0, [(4 * MIB - 64 * KIB, 4 * MIB)]),
        ([4 * MIB + 1], 0, [(4 * MIB - 64 * KIB, 4 * MIB + 64 * KIB)]),
        ([6 * MIB, 4 * MIB], 0, [(4 * MIB - 64 * KIB, 4 * MIB), (6 * MIB - 64 * KIB, 6 * MIB)]),
        ([4 * MIB, 4 * MIB + 10 * KIB], 0, [(4 * MIB - 64 * KIB, 4 * MIB + 64 * KIB)]),
        ([4 * MIB, 6 * MIB], 5 * MIB, [(6 * MIB - 64 * KIB, 6 * MIB)]),
        ([8 * MIB], 0, [(8 * MIB - 64 * KIB, 8 * MIB)]),
        ([8 * MIB + 40 * KIB], 0, [(8 * MIB - 64 * KIB, 8 * MIB)]),
        ([12 * MIB], 0, []),
    ],
)
def test_what_stands_before_the_end_of_a_process_is_kept(
    ends: list[int], done: int, kept: list[tuple[int, int]]
) -> None:
    """Of a log of 10 MiB whose newest 2 MiB are kept. kept: what no hole covers from the first MiB, or done, on."""
    found = log_holes.to_punch(10 * MIB, 2 * MIB, done, ends)
    edges = [max(MIB, done), *(edge for begin, length in found for edge in (begin, begin + length)), 8 * MIB]
    gaps = [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]
    assert gaps == kept
    for end in ends:
        assert not any(begin < end and begin + length > end - 64 * KIB for begin, length in found)


def test_a_log_that_is_written_to_meanwhile_loses_nothing_of_what_is_kept(tmp_path: Path) -> None:
    """Every line that is left is whole and in its place. Tried: a hole that ends one block later fails it."""
    if log_holes.why_not(tmp_path):
        pytest.skip(log_holes.why_not(tmp_path))
    log, newest, count = tmp_path / "rank_0.log", 2 * MIB, 120_000
    lines = [f"line {number} {'x' * 90}\n".encode() for number in range(count)]
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    marks = LogMarks({0: log}, newest, every=0.001)
    for line in lines:
        os.write(fd, line)
    os.close(fd)
    marks.end()
    length = sum(map(len, lines))
    wait_for(lambda: log.stat().st_blocks * 512 < newest + 3 * MIB, "the hole")
    assert log.stat().st_size == length
    whole = b"".join(lines)
    content = log.read_bytes()
    assert content[:MIB] == whole[:MIB]
    assert content[-newest:] == whole[-newest:]
    read = list(LogReader().read(partial(read_piece, log), last=True))
    (gap,) = [number for number, line in enumerate(read) if "are left out here, as log_max_size asks" in line]
    assert read[: gap - 1] == [line.decode().rstrip() for line in lines[: gap - 1]]
    assert whole.decode().startswith("\n".join(read[:gap]))
    assert whole.decode().endswith("\n".join([*read[gap + 1 :], ""]))
    assert len("\n".join(read[gap + 1 :])) >= newest


def test_a_file_system_that_cannot_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(log_holes, "punch", refuse)
    assert log_holes.why_not(tmp_path) == f"the file system of {tmp_path} cannot give back a part of a file"
