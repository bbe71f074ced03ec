"""All ranks resume at one step, also where some of them see more, or less, than the others."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.checkpoints import checkpoint, steps
from tests.support.harness import TINY, FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, Page, page_path
from ftlaunch_contract.protocol import memory_root

SLOW = ("--steps", "30", "--step-time", "0.03")


@pytest.mark.slow
def test_a_rank_whose_memory_is_a_step_ahead(job: FtJob, calm: FtJob) -> None:
    """Killed when rank 0 had its newest snapshot and rank 1 had not yet: both go on from the one before."""
    for step in (5, 10, 15, 20):  # killed in mid-copy they have but one step in common: then once more
        job.start("--storage-interval", "off", args=("--out", str(job.out), *SLOW))
        job.wait_step(step)
        pids = job.pids()
        job.supervisor.kill()
        job.supervisor.wait()
        wait_for(lambda pids=pids: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the ranks")
        pages = [Page(page_path(job.memory, rank)) for rank in range(2)]
        shared = set(pages[0].slot_steps()) & set(pages[1].slot_steps()) - {NONE}
        if len(shared) > 1:
            break
    newest = max(shared)
    for slot, step in enumerate(pages[1].slot_steps()):
        if step >= newest:
            pages[1].set_slot(slot, NONE)  # as far as rank 1 came
    assert max(pages[0].slot_steps()) > max(pages[1].slot_steps()), "one sees more than the other"
    common = max(pages[1].slot_steps())
    job.start(args=("--out", str(job.out), *SLOW))
    assert job.wait() == 0, job.stderr
    resumed = job.events("resumed")[-1]
    assert (resumed["step"], resumed["source"]) == (common, "memory")
    assert job.losses(0).keys() == job.losses(1).keys() == set(range(30))  # a step made twice: the same loss twice
    assert job.final() == calm.final()
    job.assert_clean()


# --- without a supervisor ---------------------------------------------------------------------------------


def first_steps(out: Path) -> list[int]:
    """The step that each rank has begun with."""
    paths = sorted(out.glob("loss_*.csv"))
    return [int(path.read_text().split()[0]) for path in paths if path.read_text()]


class Views:
    """Ranks without a launcher, each of which sees another directory where they should all see one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ranks: list[subprocess.Popen[bytes]] = []

    def start(self, *views: Path, out: str, steps: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        for rank, view in enumerate(views):
            number = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(views), "LOCAL_WORLD_SIZE": len(views)}
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "FTLAUNCH_CHECKPOINT_DIR": str(view)}
            self._start({**place, **{name: str(value) for name, value in number.items()}}, rank, out, steps)

    def _start(self, env: Mapping[str, str], rank: int, out: str, steps: int) -> None:
        command = [sys.executable, str(TINY), "--out", str(self.home / out), "--steps", str(steps)]
        with (self.home / f"{out}_stderr_{rank}").open("w") as stderr:
            self.ranks.append(
                subprocess.Popen(command, cwd=self.home, env={**os.environ, **env}, stderr=stderr)
            )  # fmt: skip

    def wait(self) -> list[int]:
        return [process.wait(90) for process in self.ranks]

    def dispose(self) -> None:
        for process in self.ranks:
            process.kill()
            process.wait()
            for left in memory_root(os.getuid()).glob(f"alone-{process.pid}-*"):  # else the next job does it
                shutil.rmtree(left)
        self.ranks.clear()


@pytest.fixture
def views(tmp_path: Path) -> Iterator[Views]:
    views = Views(tmp_path)
    yield views
    views.dispose()


@pytest.mark.slow
def test_directories_that_differ_under_the_ranks(views: Views, tmp_path: Path) -> None:
    """As on a file system that shows a rename to one client before the other: rank 0's word counts."""
    seen, ahead, empty = tmp_path / "seen", tmp_path / "ahead", tmp_path / "empty"
    views.start(seen, out="base", steps=4)
    assert views.wait() == [0]
    views.dispose()
    shutil.copytree(seen, ahead)
    checkpoint(ahead, 99)
    assert (steps(seen), steps(ahead)) == ([4], [99, 4])
    views.start(seen, ahead, out="more", steps=6)
    assert views.wait() == [0, 0], (tmp_path / "more_stderr_1").read_text()
    assert first_steps(tmp_path / "more") == [4, 4]
    assert "rank 0 cannot save step 6" in (tmp_path / "more_stderr_0").read_text()  # where rank 1 has no such folder
    assert steps(seen) == [4]
    views.dispose()

    empty.mkdir()
    views.start(seen, empty, out="less", steps=8)
    assert views.ranks[1].wait(90) == 1
    words = f"cannot restore from {layout.iteration_dir(empty, 4)}, which all ranks agreed on: metadata.json is missing"
    assert words in (tmp_path / "less_stderr_1").read_text()
    assert first_steps(tmp_path / "less") == [], "no rank trains on without it"
