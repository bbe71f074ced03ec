"""What a kernel gives, in rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.tools.preflight import kernel


@pytest.mark.parametrize(
    ("linux", "status"), [("6.18.5-cloud", "ok"), ("4.18.0-513.el8", "ok"), ("3.10.0-1160.el7", "warn")]
)
def test_the_least_kernel(linux: str, status: str) -> None:
    row = kernel.release(linux, ("glibc", "2.28"))
    assert (row.status, row.found) == (status, f"Linux {linux}, glibc 2.28")


def test_what_is_refused_is_said_with_what_follows() -> None:
    row = kernel.facility("pidfd", "Function not implemented", "threads wait")
    assert (row.status, row.found, row.advice) == ("warn", "not to be had (function not implemented)", "threads wait")
    assert kernel.facility("pidfd", "", "threads wait").advice == ""


def test_the_version_of_the_cgroup() -> None:
    assert kernel.cgroup([]).status == "skip"
    assert kernel.cgroup([Path("/sys/fs/cgroup/job/memory.events")]).found == "v2: /sys/fs/cgroup/job"
    assert kernel.cgroup([Path("/sys/fs/cgroup/memory/memory.oom_control")]).found == "v1: /sys/fs/cgroup/memory"


def test_every_facility_has_a_row() -> None:
    assert [row.name for row in kernel.checks()] == [
        "kernel", "pidfd", "memfd", "futex_waitv", "kmsg", "cgroup",
    ]  # fmt: skip
