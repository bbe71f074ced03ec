"""Checks which optional facilities of the kernel, the container and Python ftlaunch can use here."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from ftlaunch.ranks import exit_watch
from ftlaunch.system import kernel_log
from ftlaunch.tools.preflight.rules import Check
from ftlaunch_contract.files import kernel_files

OLDEST_LINUX = (4, 18)


def checks() -> Iterator[Check]:
    """Yield a check for each facility. None is ever `bad`, because ftlaunch can do without each of them."""
    yield release(platform.release(), platform.libc_ver())
    without_pidfd = "ranks are started, not forked, and threads wait for their ends: a restart takes a second"
    yield facility("pidfd", _error(lambda: kernel_files.pidfd_open(os.getpid())), without_pidfd)
    yield facility("memfd", _error(lambda: kernel_files.memfd_create("check")), "deleted files take its place")
    without_futex = "the death of a rank is seen when the kernel has taken it apart, not as it begins"
    yield facility("futex_waitv", os.strerror(errno.ENOSYS) if exit_watch.is_deaf() else "", without_futex)
    without_kmsg = "the reason of a kill is told by the counters of the cgroup, if at all"
    yield facility("kmsg", kernel_log.why_unreadable(), without_kmsg)
    yield cgroup(kernel_log.oom_counters(Path("/proc/self")))


def release(linux: str, libc: tuple[str, str]) -> Check:
    """Judge the versions of Linux and the C library.

    Args:
        linux: the release of Linux, from `platform.release`.
        libc: name and version, from `platform.libc_ver`.
    """
    found = f"Linux {linux}, {' '.join(filter(None, libc)) or 'no glibc'}"
    version = tuple(int(part) for part in linux.split("-", maxsplit=1)[0].split(".")[:2] if part.isdigit())
    if version < OLDEST_LINUX:
        return Check(
            "kernel", "warn", found, f"ftlaunch is made for Linux {'.'.join(map(str, OLDEST_LINUX))} and newer"
        )
    return Check("kernel", "ok", found)


def facility(name: str, error: str, without: str) -> Check:
    """Judge a facility of the kernel.

    Args:
        name: name of the facility.
        error: why the facility is missing; empty if it is there.
        without: the consequence of its absence.
    """
    if error:
        return Check(name, "warn", f"not to be had ({error.lower()})", without)
    return Check(name, "ok", "there")


def cgroup(counters: list[Path]) -> Check:
    """Judge the memory cgroup. counters: the files that count kills for lack of memory; may be empty."""
    if not counters:
        return Check("cgroup", "skip", "none is seen: a kill for lack of memory is told from the kernel log")
    versions = {"v2" if path.name == "memory.events" else "v1" for path in counters}
    return Check("cgroup", "ok", f"{' and '.join(sorted(versions))}: {counters[0].parent}")


def _error(open_file: Callable[[], int]) -> str:
    try:
        os.close(open_file())
    except OSError as error:
        return error.strerror or str(error)
    return ""
