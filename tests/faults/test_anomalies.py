"""A system call of a process of ours that fails costs one line: a slice of `make anomalies`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scripts.anomalies.calls import FailedCall, failed_calls
from scripts.anomalies.run import Anomaly, Failed, run
from scripts.anomalies.series import Series

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (Debian: strace)"),
    pytest.mark.long,
]
SLICE = [
    Anomaly("supervisor", "openat", "EMFILE", 9),  # no bulkheads: exit code 70
    Anomaly("fork-server", "clone", "EAGAIN", 4),
    Anomaly("saver", "fsync", "EIO", 4),
    Anomaly("agent", "openat", "EMFILE", 40),  # no bulkhead around "gone": the node is lost, exit code 70
    Anomaly("agent", "mkdir", "EACCES", 1, thread=1),  # a rank of another node is named: the job waits for ever
    Anomaly("head", "recvfrom", "ENOMEM", 10),
    Anomaly("copier", "clone3", "EAGAIN", 1),  # the thread that accepts dies: a traceback
]
"""what happened to one of them without the protection is said beside it"""


@pytest.mark.slow
@pytest.mark.parametrize("anomaly", SLICE, ids=str)
def test_a_failed_call_costs_one_line(anomaly: Anomaly, tmp_path: Path) -> None:
    """The job ends exact, or with a sentence and its state kept; never with 70, nothing is left behind."""
    outcome = run([anomaly], tmp_path)
    assert outcome.failed[0].calls
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
        FailedCall(0, "write", "EIO", is_possible=False),
        FailedCall(12, "write", "EIO", is_possible=True),
        FailedCall(34, "read", "EINTR", is_possible=True),
        FailedCall(0, "read", "EINTR", is_possible=False),
        FailedCall(0, "openat", "EIO", is_possible=True),
    ]


@pytest.mark.parametrize("in_one_job", [1, 3])
def test_each_call_of_a_series_fails(in_one_job: int) -> None:
    """A job makes 90 calls; it is given up where the 55th one fails, and is over after 70 where the 20th one does."""
    series = Series("head", 0, "read", "EIO", usual=90, in_one_job=in_one_job)
    tried = list[int]()
    jobs = 0
    while not series.is_over:
        first, step, last = series.next.number, series.next.step, series.next.last
        numbers = list(range(first, min(last, 90) + 1, step)) if step else [first] if first <= 90 else []
        if 55 in numbers:
            numbers = numbers[: numbers.index(55) + 1]
        if 20 in numbers:
            numbers = [number for number in numbers if number <= 70]
        tried += numbers
        jobs += 1
        series.advance(1, Failed(len(numbers), range(len(numbers)), are_possible=True), is_done=55 not in numbers)
    assert sorted(tried) == list(range(1, 91))
    assert series.tried == 90
    assert jobs == (91 if in_one_job == 1 else 32)
