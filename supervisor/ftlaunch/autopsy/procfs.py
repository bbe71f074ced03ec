"""Reads what /proc shows of a hanging process: threads, files, children. Only reads; never waits.

proc(5) describes the files. A file that may not be read is left out, and `Process.missing` says why. The collector's
process calls these functions, from several threads.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ftlaunch_contract.protocol import STACKS_SIGNAL

_X86 = {
    0: "read", 1: "write", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select",
    35: "nanosleep", 45: "recvfrom", 47: "recvmsg", 61: "wait4", 74: "fsync", 75: "fdatasync", 202: "futex",
    217: "getdents64", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6",
    271: "ppoll", 281: "epoll_pwait", 288: "accept4",
}  # fmt: skip
_ARM = {
    22: "epoll_pwait", 56: "openat", 61: "getdents64", 63: "read", 64: "write", 65: "readv", 66: "writev",
    67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 82: "fsync", 83: "fdatasync", 95: "waitid",
    98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 207: "recvfrom", 212: "recvmsg", 242: "accept4",
    260: "wait4",
}  # fmt: skip
_NAMES = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {})
# System calls whose first argument is a descriptor.
_ON_FILE = {"read", "write", "pread64", "pwrite64", "readv", "writev", "fsync", "fdatasync", "getdents64"}
_SELECT = {"select", "pselect6"}  # system calls whose first argument is a number of descriptors
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes


@dataclass
class Thread:
    """A thread at one moment. The names of the fields are keys of rank_<r>.proc.json."""

    tid: int
    comm: str
    state: str  # R, S, D, T, ...
    cpu: float  # seconds that the thread has run
    wchan: str = ""  # function of the kernel in which the thread waits
    syscall: str = ""  # name of the system call that the thread is in
    file: str = ""  # path of the file that the system call is about
    sleeps: bool = False  # the system call only lets time pass
    busy: float = 0.0  # processors that the thread used or waited for between two measurements
    wanted: float = field(default=0.0, repr=False)  # seconds that the thread has run or waited for a processor


@dataclass
class Process:
    """A process at one moment. The names of the fields are keys of rank_<r>.proc.json."""

    pid: int
    threads: list[Thread]
    rss: int = 0  # bytes
    fds: int = 0  # number of open descriptors
    missing: dict[str, str] = field(default_factory=dict)  # what could not be had -> why

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as an object for JSON."""
        return asdict(self)

    @property
    def main(self) -> Thread | None:
        """The main thread; None if the thread has ended."""
        return next((thread for thread in self.threads if thread.tid == self.pid), None)


def read_process(pid: int) -> Process:
    """Return what /proc shows of a process at this moment. A process that has ended has no threads."""
    process = Process(pid, [])
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for tid in sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
                process.threads.append(_thread(process, tid))
        process.rss = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        try:
            process.fds = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except PermissionError as error:
            process.missing["fds"] = str(error.strerror)
    return process


def compare(before: Process, now: Process, elapsed: float) -> None:
    """Set `busy` of the threads of `before`.

    Args:
        before: the first measurement of a process.
        now: the second measurement of the same process.
        elapsed: seconds between the measurements.
    """
    later = {thread.tid: thread.wanted for thread in now.threads}
    for thread in before.threads:
        wanted = max(later.get(thread.tid, thread.wanted) - thread.wanted, 0.0)
        thread.busy = round(wanted / elapsed, 3)


def _thread(process: Process, tid: int) -> Thread:
    """Return a thread at this moment, and note in `process.missing` what may not be read.

    Raises:
        FileNotFoundError, ProcessLookupError: the thread has ended.
    """
    base = Path(f"/proc/{process.pid}/task/{tid}")
    head, _, rest = (base / "stat").read_text().rpartition(")")
    fields = rest.split()
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    thread = Thread(tid=tid, comm=head.partition("(")[2], state=fields[0], cpu=cpu)
    thread.wanted = _wanted(base, cpu)
    thread.wchan = _read(process, base, "wchan").strip("0")
    words = _read(process, base, "syscall").split()
    if words and words[0].isdigit():
        thread.syscall = _NAMES.get(int(words[0]), f"system call {words[0]}")
        thread.sleeps = _is_sleep(thread.syscall, words[1:])
        if thread.syscall in _ON_FILE:
            with contextlib.suppress(OSError):
                thread.file = str(Path(f"/proc/{process.pid}/fd/{int(words[1], 16)}").readlink())
    return thread


def _is_sleep(name: str, arguments: Sequence[str]) -> bool:
    """Return whether a system call only lets time pass.

    Up to Python 3.10 time.sleep() is a select() without any descriptor.

    Args:
        name: name of the system call.
        arguments: hexadecimal numbers, as in /proc.
    """
    return "nanosleep" in name or (name in _SELECT and int(arguments[0], 16) == 0)


def _wanted(base: Path, cpu: float) -> float:
    """Return the seconds that a thread has run or waited for a processor.

    Waiting counts, because on a busy machine a thread that spins mostly waits.

    Args:
        base: directory of the thread in /proc.
        cpu: seconds that the thread has run.
    """
    try:
        ran, waited = (base / "schedstat").read_text().split()[:2]
    except FileNotFoundError:  # a kernel without schedstat
        return cpu
    return (int(ran) + int(waited)) / 1e9


def _read(process: Process, base: Path, name: str) -> str:
    """Return the text of a file in /proc; empty if the file may not be read, with a note in `process.missing`."""
    try:
        return (base / name).read_text()
    except PermissionError as error:
        process.missing[name] = str(error.strerror)
        return ""


# --- children -------------------------------------------------------------------------------------------------


def parents() -> dict[int, int]:
    """Return the parent's pid of every process, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = int(fields[1])
    return found


def below(pid: int, parent_of: dict[int, int]) -> list[int]:
    """Return the descendants of a process, in the order of their pids."""
    found = [pid]
    for candidate in found:  # the list grows while the loop walks along it
        found.extend(child for child, parent in parent_of.items() if parent == candidate)
    return sorted(found[1:])


def catches_stacks_signal(pid: int) -> bool:
    """Return whether a process catches STACKS_SIGNAL, which would end the process otherwise. Raises OSError."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(caught >> (STACKS_SIGNAL - 1) & 1)


def can_be_asked(pid: int) -> bool:
    """Return whether a rank's interpreter lives, so that the rank can be asked for its stacks.

    After the interpreter has ended, a thread that wants the interpreter's lock would crash the process.
    """
    try:
        return catches_stacks_signal(pid)
    except OSError:
        return False


def shows_stacks(pid: int, leader: int) -> bool:
    """Return whether a descendant of a rank answers STACKS_SIGNAL, as a fork of the rank's program does.

    Args:
        pid: the descendant.
        leader: the rank's process.
    """
    try:
        caught = catches_stacks_signal(pid)
        same = Path(f"/proc/{pid}/exe").readlink() == Path(f"/proc/{leader}/exe").readlink()
        same = same and Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{leader}/cmdline").read_bytes()
    except OSError:
        return False
    return same and caught
