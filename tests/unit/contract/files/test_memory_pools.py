"""What /proc and the cgroups say of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch_contract.files.memory_pools import MemoryPool, pools

MIB = 1 << 20
V2 = "30 22 0:26 {root} {place} rw - cgroup2 cgroup2 rw"
V1 = "31 22 0:27 {root} {place} rw - cgroup cgroup rw,memory"


def machine(place: Path, mount: str, groups: str, root: str = "/") -> Path:
    """A folder like /proc."""
    (place / "proc" / "self").mkdir(parents=True)
    (place / "proc" / "meminfo").write_text("MemTotal: 1024 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\n")
    (place / "proc" / "self" / "cgroup").write_text(groups)
    (place / "proc" / "self" / "mountinfo").write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + mount.format(root=root, place=place / "cgroup") + "\n"
    )
    return place / "proc"


def limited(folder: Path, most: str, used: int, cache: int, *, old: bool = False) -> None:
    """A cgroup."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(f"{most}\n")
    (folder / ("memory.usage_in_bytes" if old else "memory.current")).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{'total_' if old else ''}inactive_file {cache}\n")


def test_all_groups_around_ours_count(tmp_path: Path) -> None:
    proc = machine(tmp_path, V2, "0::/user/job\n")
    limited(tmp_path / "cgroup" / "user" / "job", "max", 5, 0)
    limited(tmp_path / "cgroup" / "user", str(100 * MIB), 60 * MIB, 10 * MIB)
    assert pools(proc) == [MemoryPool(MIB, MIB // 2), MemoryPool(100 * MIB, 50 * MIB)]


@pytest.mark.parametrize("groups", ["0::/docker/4711/job\n", "0::/elsewhere\n"])
def test_in_a_container_its_root_counts(tmp_path: Path, groups: str) -> None:
    proc = machine(tmp_path, V2, groups, root="/docker/4711")
    limited(tmp_path / "cgroup", str(100 * MIB), 160 * MIB, 0)
    assert pools(proc)[1:] == [MemoryPool(100 * MIB, 0)]


def test_version_1(tmp_path: Path) -> None:
    proc = machine(tmp_path, V1, "5:cpu:/\n4:memory:/job\n")
    limited(tmp_path / "cgroup" / "job", str(100 * MIB), 60 * MIB, 10 * MIB, old=True)
    limited(tmp_path / "cgroup", "9223372036854771712", 5, 0, old=True)
    assert pools(proc)[1:] == [MemoryPool(100 * MIB, 50 * MIB)]


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert pools(tmp_path) == []
