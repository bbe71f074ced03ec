"""Tensors filled from files: by several threads, in whatever portions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_hooks.storage.parallel_read import Filling, can_fill, share_of_threads

MIB = 1 << 20


def random_file(path: Path, size: int) -> torch.Tensor:
    content = torch.randint(0, 256, (size,), dtype=torch.uint8)
    path.write_bytes(content.numpy().tobytes())
    return content


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_large_and_small_ones_from_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(threads)))
    run, expected = Filling(), []
    for name, sizes in {"a": [20 * MIB + 3, 1, 0, 5 * MIB], "b": [17, 8 * MIB, 8 * MIB + 1], "c": [100]}.items():
        content, at = random_file(tmp_path / name, sum(sizes)), 0
        for size in sizes:
            target = torch.zeros(size, dtype=torch.uint8)
            run.add(tmp_path / name, at, target)
            expected.append((target, content[at : at + size]))
            at += size
    run.run()
    for target, content in expected:
        assert torch.equal(target, content)


@pytest.mark.parametrize("size", [100, 20 * MIB])
def test_a_file_that_ends_before_is_damaged(tmp_path: Path, size: int) -> None:
    random_file(tmp_path / "x", size - 1)
    run, target = Filling(), torch.zeros(size, dtype=torch.uint8)
    run.add(tmp_path / "x", 0, target)
    with pytest.raises(Damaged, match="x is cut short"):
        run.run()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    random_file(tmp_path / "x", 10)
    (tmp_path / "y").symlink_to(tmp_path / "x")
    run, target = Filling(), torch.zeros(10, dtype=torch.uint8)
    run.add(tmp_path / "y", 0, target)
    with pytest.raises(OSError, match="symbolic links"):
        run.run()


def test_of_tied_tensors_the_last_one_counts(tmp_path: Path) -> None:
    content = random_file(tmp_path / "x", 20)
    run, target = Filling(), torch.zeros(10, dtype=torch.uint8)
    run.add(tmp_path / "x", 0, target)
    run.add(tmp_path / "x", 10, target.view(2, 5))
    run.run()
    assert torch.equal(target, content[10:])


def test_what_is_not_one_stretch_is_not_filled() -> None:
    assert can_fill(torch.zeros(3, 4))
    assert not can_fill(torch.zeros(3, 4).t())
    assert not can_fill(torch.zeros(3, device="meta"))


@pytest.mark.parametrize(
    ("own_cpus", "job_cpus", "ranks", "threads"),
    [
        (64, 64, 1, 8),
        (64, 64, 16, 4),
        (4, 64, 16, 4),  # bound to CPUs of its own
        (32, 64, 16, 4),  # bound to the CPUs of a NUMA node, with seven others
        (2, 64, 8, 2),
        (2, 2, 8, 1),
        (1, 1, 1, 1),
    ],
)
def test_ranks_that_are_bound_to_cpus_use_as_many_threads_as_others(
    own_cpus: int, job_cpus: int, ranks: int, threads: int
) -> None:
    assert share_of_threads(own_cpus, job_cpus, ranks) == threads
