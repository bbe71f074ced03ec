"""Descriptors of ends and of files in memory, with and without the system calls."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from tests.support.refusing import CONTAINER, OLD_KERNEL, refuse

_PROGRAM = """
import os, select, signal, subprocess, sys
from ftlaunch_contract.files import kernel_files
from ftlaunch.tools.preflight import kernel

def ready(fd, seconds):
    return bool(select.select([fd], [], [], seconds)[0])

child = subprocess.Popen(["sleep", "60"])
fd = kernel_files.open_end(child.pid)
assert not ready(fd, 0.0)
child.kill()
assert ready(fd, 10.0), "the end of a child"
assert child.wait() == -9, "its exit status is still there"
try:
    kernel_files.open_end(child.pid)
    raise SystemExit("a process that is gone has no end to wait for")
except ProcessLookupError:
    pass
stranger = int(sys.argv[1])
fd = kernel_files.open_end(stranger)
assert not ready(fd, 0.0)
os.kill(stranger, signal.SIGKILL)
assert ready(fd, 10.0), "the end of a stranger"
file = kernel_files.memory_file("test")
os.write(file, b"words")
assert os.pread(file, 9, 0) == b"words"
assert "deleted" in os.readlink(f"/proc/self/fd/{file}")
assert not os.get_inheritable(file)
print(*(row.status for row in kernel.checks() if row.name in ("pidfd", "memfd", "futex_waitv")))
"""


@pytest.mark.parametrize(
    ("calls", "rows"),
    [({}, "ok ok ok"), (OLD_KERNEL, "warn warn warn"), (CONTAINER, "warn warn warn")],
    ids=["plain", "old kernel", "container"],
)
def test_ends_and_files(calls: dict[int, int], rows: str) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(stranger.pid)],
        preexec_fn=refuse(calls), capture_output=True, text=True, check=False,
    )  # fmt: skip
    stranger.kill()
    assert done.returncode == 0, done.stderr
    assert stranger.wait() == -signal.SIGKILL
    assert done.stdout.split() == rows.split()
