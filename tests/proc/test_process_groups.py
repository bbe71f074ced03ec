"""SIGKILL to a rank's process group reaches what the rank has left, and no stranger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.leftovers import alive
from tests.support.waiting import wait_for

_SUPERVISOR = """
import os, sys
from pathlib import Path
from ftlaunch.system import processes
from ftlaunch.system.processes import RankProcess

processes.become_subreaper()
stranger = int(sys.argv[1])
script = "import os, subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
log = Path(sys.argv[2])
rank = RankProcess(0, [sys.executable, "-c", script], os.environ, log, "FT=1")
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
