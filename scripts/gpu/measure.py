"""Measures what snapshots and restarts cost on a device; prints JSON: figure -> [unit, values].

measure.py DEVICE
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.protocol import Flag
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.snapshots.private_room import PrivateRoom
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState

ROUNDS = 7
JOB = Path(__file__).with_name("job.py")
Figures = dict[str, tuple[str, list[float]]]


def stalls(device: str, mebibytes: int, private: bool) -> Iterator[float]:
    """Yield the milliseconds that the training loop waits for each snapshot.

    Args:
        device: `cuda` or `cpu`.
        mebibytes: the size of the state.
        private: whether snapshots are first copied on the device.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ftlaunch-bench-") as directory:
        memory = Path(directory)
        create_page(page_path(memory, 0))
        page = Page(page_path(memory, 0))
        page.begin(0, os.getpid(), 0)
        page.raise_flag(Flag.ATTACHED)
        model = nn.ParameterList(nn.Parameter(torch.randn(1 << 20, device=device)) for _ in range(mebibytes // 4))
        snapshots = Snapshotter(
            state=RankState({"model": model}, (), rank=0, world_size=1),
            page=page,
            peers=[page],
            directory=memory,
            rank=0,
            versions={},
        )
        with mock.patch.object(PrivateRoom, "has_room", lambda *_: private):
            for step in range(ROUNDS + 3):
                if device == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                snapshots.capture(step)
                if step >= 3:
                    yield 1000 * (time.perf_counter() - began)
                snapshots.settle()
        snapshots.close()
        page.close()


def first_slot(device: str, mebibytes: int) -> Iterator[tuple[str, float]]:
    """Measure what the first snapshot in a slot needs besides its copy, and copies.

    Yields:
        What was measured, and its seconds for `mebibytes`.
    """
    size = mebibytes << 20
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    for _ in range(3):
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            began = time.perf_counter()
            os.posix_fallocate(file.fileno(), 0, size)
            reserved = time.perf_counter()
            mapped = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            populated = time.perf_counter()
            yield "reserve memory", reserved - began
            yield "map it", populated - reserved
            target = torch.frombuffer(mapped, dtype=torch.uint8)
            if device == "cuda":
                began = time.perf_counter()
                target.copy_(source)
                yield "copy to memory that is not pinned", time.perf_counter() - began
                began = time.perf_counter()
                pinned = device_port.pin(mapped, size, source.device)
                yield "pin it", time.perf_counter() - began
                torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source)
            yield "copy", time.perf_counter() - began
            if device == "cuda":
                pinned.close()


def restart(device: str, way: str, launcher: str, cache: Path) -> dict[str, float]:
    """Return the milliseconds of each part of one restart. cache: the directory of the compiler's cache."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        command = {
            "ftlaunch": [
                *("ftlaunch", "--nproc-per-node", "1", "--max-restarts", "1", "--run-dir", "run"),
                *("--memory-interval", "1", "--storage-interval", "off"),
            ],
            "torchrun": ["torch.distributed.run", "--nproc-per-node", "1", "--max-restarts", "1", "--standalone"],
        }[launcher]
        subprocess.run(
            [sys.executable, "-m", *command, str(JOB), device, way, str(home / "notes")],
            cwd=home,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
            check=True,
            capture_output=True,
        )
        notes = [json.loads(line) for line in (home / "notes").read_text().splitlines()]
    [death] = [moment for _, what, moment in notes if what == "death"]
    parts: dict[str, float] = {}
    before = death
    for attempt, what, moment in notes:
        if attempt == 1 and what not in parts:
            parts[what] = 1000 * (moment - before)
            before = moment
    return {**parts, "death to the end of the first step after it": 1000 * (before - death)}


def restarts(device: str, way: str, launcher: str, rounds: int, *, keep_cache: bool) -> Figures:
    """Return the parts of several restarts. keep_cache: whether the compiler finds what earlier runs have compiled."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as kept:
        if keep_cache:
            restart(device, way, launcher, Path(kept))
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as fresh:
                for name, value in restart(device, way, launcher, Path(kept if keep_cache else fresh)).items():
                    label = f"{launcher}, {way}{', cache kept' if keep_cache else ''}: {name}"
                    found.setdefault(label, ("ms", []))[1].append(value)
    return found


def main() -> None:
    """Measure everything."""
    device = sys.argv[1]
    sizes = (64, 1024, 4096) if device == "cuda" else (64,)
    figures: dict[str, Any] = {}
    for size in sizes:
        for private in (True, False):
            name = f"stall of {size} MiB, {'copied on the device first' if private else 'straight to memory'}"
            figures[name] = ("ms", list(stalls(device, size, private)))
    for what, seconds in first_slot(device, sizes[-1]):
        figures.setdefault(what, ("ms a GiB", []))[1].append(1000 * seconds / (sizes[-1] / 1024))
    for launcher in ("ftlaunch", "torchrun"):
        figures |= restarts(device, "eager", launcher, 3, keep_cache=False)
    if device == "cuda":
        for keep_cache in (False, True):
            figures |= restarts(device, "compile", "ftlaunch", 2, keep_cache=keep_cache)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
