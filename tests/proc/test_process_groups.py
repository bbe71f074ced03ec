"""SIGKILL to a rank's process group reaches what the rank has left, and no stranger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.leftovers import alive
from tests.support.waiting import wait_for

from ftlaunch.system.processes import kill_marked

_SUPERVISOR = """
import os, sys
from pathlib import Path
from ftlaunch.system import processes
from ftlaunch.ranks.log_files import open_log
from ftlaunch.system.processes import RankProcess

processes.become_subreaper()
stranger = int(sys.argv[1])
script = "import os, subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
log = Path(sys.argv[2])
rank = RankProcess(0, [sys.executable, "-c", script], os.environ, log, open_log(log), "FT=1")
while not rank.reap():
    pass
left = int(log.read_text())
assert os.getpgid(left) == rank.pid
rank.kill_group()
os.waitpid(left, 0)
rank.pid = stranger  # the number was given to another's group since
rank.kill_group()
print("done")
"""


def test_after_the_leaders_end_only_descendants_are_killed(tmp_path: Path) -> None:
    """Taken out (os.killpg in every case): the stranger is killed."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SUPERVISOR, str(stranger.pid), str(tmp_path / "log")],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.stdout.strip() == "done", done.stderr
        assert alive(stranger.pid)
    finally:
        os.kill(stranger.pid, signal.SIGKILL)
        stranger.wait()
    wait_for(lambda: not alive(stranger.pid), "its end")


_CLEANING = """
import os, signal, subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from ftlaunch.system import processes
from ftlaunch.ranks.log_files import open_log
from ftlaunch.system.processes import Cleaners, RankProcess

processes.become_subreaper()
script = (
    "import subprocess, time; from multiprocessing.shared_memory import SharedMemory;"
    " one = SharedMemory(create=True, size=4096); subprocess.Popen(['sleep', '60']);"
    " print(one.name, flush=True); time.sleep(60)"
)
log = Path(sys.argv[1])
rank = RankProcess(0, [sys.executable, "-c", script], os.environ, log, open_log(log), "FT=1")
while not log.read_text().endswith("\\n"):
    time.sleep(0.01)
segment = Path("/dev/shm") / log.read_text().strip()
assert segment.exists()
rank.kill_group()
cleaners = Cleaners(time.monotonic)
while not processes.kill_descendants([], [rank.pid], cleaners) or not rank.reap():
    time.sleep(0.005)
assert processes.children(os.getpid()) == []
print("left" if segment.exists() else "gone")
segment.unlink(missing_ok=True)
"""


def test_what_removes_shared_memory_does_so_before_it_is_killed(tmp_path: Path) -> None:
    """Taken out (os.killpg, or no time in the sweep): Python's resource tracker dies before it unlinks anything."""
    done = subprocess.run(
        [sys.executable, "-c", _CLEANING, str(tmp_path / "log")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "gone", done.stdout + done.stderr


_ORPHANS = """
import os, subprocess, sys, time
from ftlaunch.system import processes

processes.become_subreaper()
helper = subprocess.Popen(["true"])
for _ in range(50):
    subprocess.run(["sh", "-c", "(true &)"])
deadline = time.monotonic() + 60
while len(processes.children(os.getpid())) > 1:
    processes.reap_orphans({helper.pid})
    assert time.monotonic() < deadline
print(helper.wait())
"""


def test_orphans_that_have_ended_are_reaped_and_our_own_children_are_not() -> None:
    done = subprocess.run([sys.executable, "-c", _ORPHANS], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "0", done.stderr


_ORPHANS_ALONE = """
import os, subprocess, sys, time
from ftlaunch.system import processes

processes.become_subreaper()
for _ in range(50):
    subprocess.run(["sh", "-c", "(true &)"])
processes.children = None  # a look at /proc would fail
reaped, deadline = 0, time.monotonic() + 60
while reaped < 50:
    reaped += len(processes.reap_orphans(()))
    assert time.monotonic() < deadline
print(reaped)
"""


def test_orphans_alone_are_reaped_without_a_look_at_proc() -> None:
    """Taken out: looks took so much of the processor that they came seldom, and 200 zombies stood between two."""
    done = subprocess.run(
        [sys.executable, "-c", _ORPHANS_ALONE], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "50", done.stderr


def test_processes_with_another_directory_at_the_marked_path_are_spared(tmp_path: Path) -> None:
    """Two containers that share their pids have a /dev/shm each. Taken out: one ends the other's fork server."""
    if os.geteuid():
        pytest.skip("only root may make a mount namespace: run as root")
    directory = tmp_path / "memory"
    directory.mkdir()
    marker = f"FTLAUNCH_TEST_DIR={directory}"
    env = {**os.environ, "FTLAUNCH_TEST_DIR": str(directory)}
    other = 'mount -t tmpfs none "$0" && touch "$1" && exec sleep 60'
    ours = subprocess.Popen(["sleep", "60"], env=env)
    theirs = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", other, str(directory), str(tmp_path / "ready")], env=env
    )
    try:
        wait_for((tmp_path / "ready").exists, "the other container")
        assert kill_marked(marker) == [ours.pid]
        assert ours.wait(60) == -signal.SIGKILL
        assert theirs.poll() is None
    finally:
        ours.kill()
        theirs.kill()
        ours.wait()
        theirs.wait()
