"""A real memory cgroup: snapshots fit into what it has left, and slots are given up when that becomes short."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

LIMIT = 768 << 20
_RANK = """
import sys
from pathlib import Path
from tests.support.snapshots import make_pages
from ftlaunch_contract.files.memory_pools import pools
from ftlaunch_contract.pages.page import open_pages
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget

directory, limit = Path(sys.argv[1]), int(sys.argv[2])
make_pages(directory, 1)
(page,) = open_pages(directory, 1)
budget = MemoryBudget(0, [page], directory)
(own,) = (pool for pool in pools() if pool.limit == limit)
need = own.available // 3
budget.agree(0, need, 0)
assert budget.slots == 2, (budget.slots, own)
for number in range(2):
    with (directory / f"slot_{number}").open("wb") as file:
        for _ in range(need >> 20):
            file.write(bytes(1 << 20))
budget.spaced(1)
assert not budget.progress.wanted(), "there is memory left"
(own,) = (pool for pool in pools() if pool.limit == limit)
assert own.available < need * 1.3, "the slots are charged to the group"
grown = bytearray(own.available - limit // 60)
for place in range(0, len(grown), 4096):
    grown[place] = 1
budget.check_at_ns = 0
budget.spaced(1)
assert budget.progress.wanted(), "memory is short"
budget.agree(1, need, 2 * need)
assert budget.slots == 1, budget.slots
print("agreed")
"""


@pytest.fixture
def group() -> Iterator[Path]:
    base = Path("/sys/fs/cgroup")
    old = base / "memory"
    group = (old if old.is_dir() else base) / f"test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(
            f"no control group can be made in /sys/fs/cgroup: {error}; run as root, where it is mounted for writing"
        )
    try:
        limit = group / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")
        if not limit.exists():
            pytest.skip("the control group counts no memory: have its parent delegate the controller `memory`")
        limit.write_text(str(LIMIT))
        yield group
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the end of all in the group")
        wait_for(lambda: _removed(group), "the group to be given back")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def test_slots_fit_into_the_cgroup(group: Path, memory: Path) -> None:
    """Taken out (`memory_for`): there are three slots, and the kernel kills the process that fills them."""
    (memory / "job").mkdir(mode=0o700)
    with (group / "cgroup.procs").open("w") as enter:
        done = subprocess.run(
            [sys.executable, "-c", _RANK, str(memory / "job"), str(LIMIT)],
            preexec_fn=lambda: enter.write(str(os.getpid())) and enter.flush(),
            capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "agreed"
