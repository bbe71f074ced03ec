"""The end of a rank is seen also where the loop cannot wait for it, as the kernel has no memory for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# A process of its own: ranks are children of whoever starts them.
_STARTER = """\
import errno, os, time
from pathlib import Path
from ftlaunch.memory.pages import Pages
from ftlaunch.ranks.cpu_affinity import CpuAffinity
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.ranks.gpu_memory import GpuMemoryWait
from ftlaunch.ranks.local_ranks import LocalRanks, Surroundings
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch.system.helper_process import HelperProcesses

class Full:
    turn = 1
    def register(self, fd, handler):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

home = Path.cwd()
spec = resolve("ends.py", (), {"nproc_per_node": "2", "warm": "no", "run_dir": str(home)}, {})
(home / "memory").mkdir()
files = FileThread(home)
warm = Warm(HelperProcesses(), spec, {}, home / "warm.log", files, lambda *_, **__: None)
gpus, loop = Gpus(), Full()
around = Surroundings(
    spec=spec, pages=Pages(home / "memory", 2), gpus=gpus, fork_server=warm, base_env=dict(os.environ),
    control=home / "control", marker="NO=MARK", loop=loop, clock=time.monotonic, files=files,
    affinity=CpuAffinity(None, print), gpu_memory=GpuMemoryWait(gpus, loop, time.monotonic, print),
)
ended = []
group = LocalRanks(around, 0, lambda rank: ended.append((rank.number, rank.process.returncode)))
group.spawn()
until = time.monotonic() + 60
while not group.empty:
    assert time.monotonic() < until, "no end was seen"
    group.reap([])
print(sorted(ended))
"""


def test_ends_that_the_loop_cannot_tell_of_are_looked_for(tmp_path: Path) -> None:
    """Taken out (`_unwatched`): the ranks cannot be started, or live for ever."""
    (tmp_path / "ends.py").write_text("import os, sys\nsys.exit(int(os.environ['RANK']) + 3)\n")
    done = subprocess.run(
        [sys.executable, "-c", _STARTER], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=90
    )
    assert done.stdout.strip() == "[(0, 3), (1, 4)]", done.stdout + done.stderr
