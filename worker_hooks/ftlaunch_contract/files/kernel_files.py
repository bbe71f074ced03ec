"""Descriptors for the end of a process (pidfd) and for files in memory (memfd), with fallbacks for both.

Pythons built with old headers (conda's, say) lack `os.pidfd_open` and `os.memfd_create` whatever the kernel can do: the
system call is then made directly. Kernels before 5.3 and seccomp filters refuse the calls: a pipe and an unlinked file
then take their place. Standard library only. A program whose Python lacks this package also loads this module as a
file, so nothing of the package is imported at the top.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_PIDFD_OPEN = 434  # the same on all architectures that Python runs on
_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "riscv64": 279, "ppc64le": 360, "s390x": 350}
_CLOEXEC = 1  # MFD_CLOEXEC
_REFUSED = (errno.ENOSYS, errno.EPERM, errno.EACCES)  # by the kernel, or by a seccomp filter
_POLL_SECONDS = 0.1  # between checks of a process that is no child of ours
_SHM = "/dev/shm"  # noqa: S108 - the files in it have no name

_syscall = ctypes.CDLL(None, use_errno=True).syscall


def pidfd_open(pid: int) -> int:
    """Return a pidfd of a process.

    Raises:
        ProcessLookupError: there is no such process.
        OSError: the kernel or a filter refuses the call.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    fd = int(_syscall(_PIDFD_OPEN, pid, 0))  # pidfds are close-on-exec without a flag
    if fd < 0:
        raise _errno_error()
    return fd


def memfd_create(name: str) -> int:
    """Return the descriptor of an anonymous file in memory. Raises OSError where the call is refused."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    number = _MEMFD_CREATE.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fd = int(_syscall(number, name.encode(), _CLOEXEC))
    if fd < 0:
        raise _errno_error()
    return fd


def _errno_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


# --- with a fallback where the call is refused -------------------------------------------------------------------


def open_end(pid: int) -> int:
    """Return a descriptor that becomes readable when a process ends: a pidfd, or a pipe that a thread closes.

    Without pidfds, a thread waits for a child and closes the pipe at once; a process that is no child is polled. A
    process that forks ranks must not call this, because the thread would not survive the fork. The caller still has to
    take the exit status of a child.

    Raises:
        ProcessLookupError: there is no such process.
        OSError: no descriptor or thread is to be had.
    """
    try:
        return pidfd_open(pid)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    wait = _wait_for_child if _is_child(pid) else _watch(pid)
    reader, writer = os.pipe()

    def close_at_end() -> None:
        wait(pid)
        os.close(writer)

    try:
        threading.Thread(target=close_at_end, name=f"ftlaunch-end-of-{pid}", daemon=True).start()
    except RuntimeError as error:
        os.close(reader)
        os.close(writer)
        raise OSError(errno.EAGAIN, str(error)) from error
    return reader


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _wait_for_child(pid: int) -> None:
    with suppress(ChildProcessError):  # its exit status has been taken already
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _watch(pid: int) -> Callable[[int], None]:
    """Return a function that polls until a process that is no child of ours has ended. Raises ProcessLookupError."""
    from ftlaunch_contract.protocol import process_start_time  # noqa: PLC0415 - a load as a file lacks the package

    began = process_start_time(pid)
    if not began:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    def wait(pid: int) -> None:
        while process_start_time(pid) == began:
            time.sleep(_POLL_SECONDS)

    return wait


def memory_file(name: str) -> int:
    """Return the descriptor of an empty file without a name.

    It is a memfd; where the kernel has none, a deleted file in /dev/shm, or in the temporary directory if /dev/shm
    cannot be written to. Raises OSError.
    """
    try:
        return memfd_create(name)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    directory = _SHM if os.access(_SHM, os.W_OK | os.X_OK) else None
    fd, path = tempfile.mkstemp(prefix=f"ftlaunch-{name}-", dir=directory)
    os.unlink(path)  # noqa: PTH108
    return fd
