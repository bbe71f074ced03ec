"""Pythons and kernels that lack features: names taken from `os`, and a seccomp filter that refuses system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ftlaunch_contract.protocol import memory_root

PIDFD_OPEN = 434
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}.get(platform.machine(), -1)
FUTEX_WAITV = 449

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
# Instructions of BPF: BPF_LD|W|ABS, BPF_JMP|JEQ|K and BPF_RET|K.
_LOAD = 0x20
_JUMP_IF_EQUAL = 0x15
_RETURN = 0x06
# Results of a seccomp filter.
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

_LACKING = """
import os, signal
for module, names in ((os, ("pidfd_open", "memfd_create")), (signal, ("pidfd_send_signal",))):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
if "FT_TEST_LACKING" in os.environ:
    with open(os.environ["FT_TEST_LACKING"], "a") as file:
        file.write(f"{hasattr(os, 'pidfd_open')}\\n")
"""


_NO_FLOCK = """
import errno, fcntl, os
flock = fcntl.flock
def refuse(fd, operation):
    if os.fstat(fd).st_dev == os.stat("/dev/shm").st_dev:
        return flock(fd, operation)
    with open(os.environ["FT_TEST_NO_FLOCK"], "a") as file:
        file.write(os.readlink(f"/proc/self/fd/{fd}") + "\\n")
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
fcntl.flock = refuse
"""


class _Program(ctypes.Structure):
    """C's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def without_flock(home: Path) -> dict[str, str]:
    """Return an environment in which flock(2) works in /dev/shm only.

    The file `<home>/no_flock` gets the path of each file whose lock was refused.
    """
    folder = home / "sitecustomize"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_NO_FLOCK)
    return {"PYTHONPATH": str(folder), "FT_TEST_NO_FLOCK": str(home / "no_flock")}


def stand_ins(directory: Path) -> list[Path]:
    """Return the files in memory that stand in for the locks of a directory and of everything in it."""
    found = [path.stat() for path in (directory, *directory.rglob("*")) if path.is_dir()]
    names = {f"{info.st_dev}-{info.st_ino}" for info in found}
    folder = memory_root(os.getuid()) / "@locks"
    return [path for path in folder.glob("*") if path.name.rpartition("-")[0] in names]


def lacking_python(home: Path) -> dict[str, str]:
    """Return an environment in which every Python lacks some names; each leaves a line in `<home>/lacking`."""
    folder = home / "sitecustomize"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_LACKING)
    return {"PYTHONPATH": str(folder), "FT_TEST_LACKING": str(home / "lacking")}


def refuse(calls: Mapping[int, int]) -> Callable[[], None]:
    """Return a `preexec_fn` for Popen that has system calls fail in the process and its children.

    Skips the test on unknown processors.

    Args:
        calls: number of a system call -> the errno with which the call fails.
    """
    if MEMFD_CREATE < 0:
        pytest.skip("the numbers of system calls are not known here: run on x86-64 or AArch64")
    lines = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for number, code in calls.items():
        lines.append(struct.pack("HBBI", _JUMP_IF_EQUAL, 0, 1, number))
        lines.append(struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | code))
    lines.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    filters = b"".join(lines)
    program = _Program(len(lines), filters)
    libc = ctypes.CDLL(None, use_errno=True)

    def install() -> None:
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
        ):
            raise OSError(ctypes.get_errno(), "cannot install a seccomp filter")

    return install


def refused(pid: int) -> bool:
    """Return whether a process runs under a seccomp filter."""
    return "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()


OLD_KERNEL = {PIDFD_OPEN: errno.ENOSYS, MEMFD_CREATE: errno.ENOSYS, FUTEX_WAITV: errno.ENOSYS}
CONTAINER = {PIDFD_OPEN: errno.EPERM, MEMFD_CREATE: errno.EPERM, FUTEX_WAITV: errno.EPERM}
