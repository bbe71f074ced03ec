"""Digests of a file, block by block."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftlaunch_contract.files import checksums


def test_digests_are_what_xxh128sum_prints() -> None:
    """The empty file's as xxHash's own documentation has it."""
    assert checksums.of_bytes(b"") == ["99aa06d3014798d86001c324468d497f"]


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 1000, 1001])
@pytest.mark.parametrize("piece", [1, 30, 100, 250, 2000])
def test_digests_do_not_depend_on_how_the_bytes_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, piece: int
) -> None:
    monkeypatch.setattr(checksums, "BLOCK", 100)
    data = os.urandom(size)
    (tmp_path / "x").write_bytes(data)
    running = checksums.Running()
    for begin in range(0, size, piece):
        running.update(memoryview(data)[begin : begin + piece])
    with (tmp_path / "x").open("rb") as file:
        read = [checksums.of_block(file.fileno(), *block) for block in checksums.blocks(size)]
    assert running.finish() == read == checksums.of_bytes(data)
    assert len(read) == max(1, -(-size // 100))
