"""A system call of a process of ours that fails costs one line: a slice of `make anomalies`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scripts.anomalies.calls import failed_calls
from scripts.anomalies.run import Anomaly, run

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.long,
]
SLICE = [
    Anomaly("supervisor", "openat", "EMFILE", 9),  # no bulkheads: exit code 70
    Anomaly("fork-server", "clone", "EAGAIN", 4),
    Anomaly("saver", "fsync", "EIO", 4),
    Anomaly("agent", "openat", "EMFILE", 40),  # no bulkhead around "gone": the node is lost, exit code 70
    Anomaly("head", "recvfrom", "ENOMEM", 10),
    Anomaly("copier", "clone3", "EAGAIN", 1),  # the thread that accepts dies: a traceback
]
"""what happened to one of them without the protection is said beside it"""


@pytest.mark.parametrize("anomaly", SLICE, ids=str)
def test_a_failed_call_costs_one_line(anomaly: Anomaly, tmp_path: Path) -> None:
    """The job ends exact, or with a sentence and its state kept; never with 70, nothing is left behind."""
    outcome = run([anomaly], tmp_path)
    assert outcome.fired == [True]
    assert not outcome.wrong, outcome.said


def test_only_errors_that_linux_gives_are_tried() -> None:
    log = """\
write(2<pipe:[7]>, "x", 1) = -1 EIO (Input/output error) (INJECTED)
[pid  12] write(3</tmp/x>, "x", 1) = -1 EIO (Input/output error) (INJECTED)
34 read(0<socket:[8]>, "", 1) = -1 EINTR (Interrupted system call) (INJECTED)
read(13<anon_inode:[eventfd]>, 0x7ffe, 8) = -1 EINTR (Interrupted system call) (INJECTED)
openat(AT_FDCWD</tmp>, "/proc/1/stat", O_RDONLY) = -1 EIO (Input/output error) (INJECTED)
openat(AT_FDCWD</tmp>, "/nowhere", O_RDONLY) = -1 ENOENT (No such file or directory)
"""
    assert failed_calls(log) == [
        ("write", "EIO", False),
        ("write", "EIO", True),
        ("read", "EINTR", True),
        ("read", "EINTR", False),
        ("openat", "EIO", True),
    ]
