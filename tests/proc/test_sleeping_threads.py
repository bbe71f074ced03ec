"""A thread that only lets time pass is told from one that waits for something, whichever system call it is in."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.support.waiting import wait_for

from ftlaunch.autopsy import procfs, rank_dump

PROGRAM = """\
import os, select, time
print("ready", flush=True)
{call}
"""


@pytest.mark.parametrize(
    ("call", "sleeps"),
    [
        ("time.sleep(1000)", True),
        ("select.select([], [], [], 1000)", True),  # what time.sleep() is in Python 3.10
        ("select.select([os.pipe()[0]], [], [], 1000)", False),
        ("os.read(os.pipe()[0], 1)", False),
    ],
)
def test_a_select_without_descriptors_is_a_sleep(call: str, sleeps: bool) -> None:
    """Taken out: without _is_sleep, or where every select is one."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(call=call)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            wait_for(
                lambda: (main := procfs.read_process(process.pid).main) and main.syscall and main.state == "S", "sleep"
            )
            seen = procfs.read_process(process.pid)
        finally:
            process.kill()
    assert seen.missing == {}
    assert rank_dump.read(0, "", seen.as_dict(), None).sleeps is sleeps
