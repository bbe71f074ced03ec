"""Which disks are full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftlaunch.system import resources


def disk(blocks: int, free: int, files: int = 0, inodes: int = 0) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, blocks, free, free, files, inodes, inodes, 0, 255))


@pytest.mark.parametrize(
    ("told", "is_full"),
    [(disk(1000, 900), False), (disk(1000, 255), True), (disk(1000, 256), False),
     (disk(1000, 900, 50, 0), True), (disk(0, 0), False)],
)  # fmt: skip
def test_room_and_inodes_count(
    told: os.statvfs_result, is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: told)
    places = [tmp_path / "missing" / "deep", tmp_path]
    assert resources.full_disks(places) == ([tmp_path] if is_full else []), "each file system once, where it is there"
