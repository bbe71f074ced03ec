"""A power loss in mid-save: what the device holds at that moment has every checkpoint that was committed."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.checkpoints import assert_whole, make_slots, request
from tests.support.disks import ext4, make_ext4, private_dir

from ftlaunch_contract.checkpoint import layout, verify

SIZE = 512 << 10  # bytes of each of the four tensor files
LOSSES = 60


class Saver:
    """The real saver, one request after the other."""

    def __init__(self, root: Path) -> None:
        self.root, self.step, self.committed = root, 0, -1
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftlaunch.checkpoints.saver", "FT_TEST=nobody"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.ask()

    def ask(self) -> None:
        shutil.rmtree(self.root / "slots", ignore_errors=True)
        self.step += 1
        slots = make_slots(self.root / "slots", self.step, size=SIZE)
        asked = request(self.root, self.step, slots, keep=2)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()

    def serve(self, seconds: float) -> None:
        """Let it work so long."""
        end = time.monotonic() + seconds
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            answer: dict[str, Any] = json.loads(self.process.stdout.readline())
            assert "error" not in answer, answer
            self.committed = answer["step"]
            self.ask()

    def close(self) -> None:
        self.process.communicate()


def device_now(image: Path, copy: Path) -> None:
    """Copy what the device holds at one moment: again and again until it did not change while it was copied."""
    for _ in range(200):
        shutil.copyfile(image, copy)
        before = copy.read_bytes()
        if before == image.read_bytes():
            return
    raise AssertionError("the device never came to rest")


def judge(copy: Path, place: Path, committed: int) -> int:
    """Mount what was left, as the next start would find it; the newest step in it."""
    with ext4(copy, place):
        checkpoints = place / "checkpoints"
        found = layout.list_iterations(checkpoints)
        for _, directory in found:
            assert_whole(directory, size=SIZE)
        newest, refusals = verify.newest_verified(checkpoints)
        assert refusals == []
        assert newest >= committed, f"step {committed} had been committed, {newest} is there"
        return newest


@pytest.mark.slow
def test_committed_checkpoints_survive_a_power_loss(tmp_path: Path) -> None:
    chance = random.Random(7)
    with private_dir() as private:
        image, copy, disk = private / "image", private / "copy", tmp_path / "disk"
        make_ext4(image, 48 << 20)
        with ext4(image, disk):
            (private / "checkpoints").symlink_to(disk / "checkpoints")
            (disk / "checkpoints").mkdir()
            os.sync()
            saver = Saver(private)
            frozen, unfinished = psutil.Process(saver.process.pid), 0
            try:
                for _ in range(LOSSES):
                    saver.serve(chance.uniform(0.01, 0.1))
                    committed = saver.committed
                    frozen.suspend()  # wherever it is; what it has not synced is in the page cache alone
                    unfinished += bool(layout.list_incomplete(disk / "checkpoints"))
                    device_now(image, copy)
                    frozen.resume()
                    judge(copy, tmp_path / "lost", committed)
            finally:
                frozen.resume()
                saver.close()
        assert unfinished > LOSSES / 4, "saves were caught in the middle"
        assert saver.committed > LOSSES / 10
