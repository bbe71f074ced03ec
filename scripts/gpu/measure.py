"""What snapshots and restarts cost on a device; prints JSON: figure -> [unit, values].

measure.py DEVICE
"""

from __future__ import annotations

import json
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
from ftlaunch_hooks.snapshots.copies import Copies
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState

ROUNDS = 7
JOB = Path(__file__).with_name("job.py")
Figures = dict[str, tuple[str, list[float]]]


def stalls(device: str, mebibytes: int, private: bool) -> Iterator[float]:
    """Milliseconds that the training loop waits for one snapshot; private: copies on the device come first."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ftlaunch-bench-") as directory:
        memory = Path(directory)
        create_page(page_path(memory, 0))
        page = Page(page_path(memory, 0))
        page.begin(0, os.getpid(), 0)
        page.raise_flag(Flag.ATTACHED)
        model = nn.ParameterList(nn.Parameter(torch.randn(1 << 20, device=device)) for _ in range(mebibytes // 4))
        snapshots = Snapshotter(RankState({"model": model}, (), 0, 1), page, [page], memory, 0, {})
        with mock.patch.object(Copies, "_fits", lambda *_: private):
            for step in range(ROUNDS + 3):
                if device == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                snapshots.take(step)
                if step >= 3:
                    yield 1000 * (time.perf_counter() - began)
                snapshots.settle()
        snapshots.close()
        page.close()


def restart(device: str, way: str, cache: Path) -> dict[str, float]:
    """Milliseconds of each part of one restart; cache: of the compiler."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        command = [sys.executable, "-m", "ftlaunch", "--nproc-per-node", "1", "--max-restarts", "1", "--run-dir", "run"]
        subprocess.run(
            [
                *command,
                "--memory-interval",
                "1",
                "--storage-interval",
                "off",
                str(JOB),
                device,
                way,
                str(home / "notes"),
            ],
            cwd=home,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
            check=True,
            capture_output=True,
        )
        before, after = [json.loads(line) for line in (home / "notes").read_text().splitlines()]
    begin, parts = before[-1][1], {}
    whole = after[-1][1] - begin
    for name, moment in after:
        parts[name], begin = 1000 * (moment - begin), moment
    return {**parts, "death to the end of the first step": 1000 * whole}


def restarts(device: str, way: str, rounds: int, keep_cache: bool) -> Figures:
    """Each part of several restarts. keep_cache: the compiler finds what earlier runs have compiled."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as kept:
        if keep_cache:
            restart(device, way, Path(kept))
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as fresh:
                for name, value in restart(device, way, Path(kept if keep_cache else fresh)).items():
                    label = f"{way}{', cache kept' if keep_cache else ''}: {name}"
                    found.setdefault(label, ("ms", []))[1].append(value)
    return found


def main() -> None:
    """Measure all."""
    device = sys.argv[1]
    sizes = (64, 1024, 4096) if device == "cuda" else (64,)
    figures: dict[str, Any] = {}
    for size in sizes:
        for private in (True, False):
            name = f"stall of {size} MiB, {'copied on the device first' if private else 'straight to memory'}"
            figures[name] = ("ms", list(stalls(device, size, private)))
    figures |= restarts(device, "eager", 3, keep_cache=False)
    if device == "cuda":
        figures |= restarts(device, "compile", 2, keep_cache=False)
        figures |= restarts(device, "compile", 2, keep_cache=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
