"""The system calls that are made to fail, the errors that Linux can give for each, and a reader of strace's logs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_DESCRIPTORS = ("EMFILE", "ENFILE", "ENOMEM")
_DISK = ("EIO", "ESTALE")
_ROOM = ("ENOSPC", "EIO")

ERRORS: Mapping[str, Sequence[str]] = {
    "openat": (*_DESCRIPTORS, *_DISK, "EACCES", "ENOSPC", "EINTR"),
    "getdents64": (*_DISK, "ENOMEM"),
    "newfstatat": (*_DISK, "EACCES", "ENOMEM"),
    "fstat": _DISK,
    "lseek": _DISK,
    "readlink": (*_DISK, "EACCES"),
    "statfs": _DISK,
    "fstatfs": _DISK,
    "getcwd": ("ENOENT",),
    "mkdir": (*_ROOM, "EACCES", "ESTALE"),
    "unlink": (*_DISK, "EACCES"),
    "unlinkat": (*_DISK, "EACCES"),
    "rmdir": (*_DISK, "EACCES"),
    "rename": (*_ROOM, "EACCES", "ESTALE"),
    "link": (*_ROOM, "EACCES", "ESTALE"),
    "symlink": (*_ROOM, "EACCES", "ESTALE"),
    "chmod": (*_DISK, "EACCES"),
    "read": (*_DISK, "EINTR"),
    "write": (*_ROOM, "ESTALE", "EINTR"),
    "pwrite64": (*_ROOM, "ESTALE"),
    "pread64": _DISK,
    "sendfile": (*_ROOM, "ESTALE", "ENOMEM"),
    "copy_file_range": (*_ROOM, "ESTALE", "ENOMEM"),
    "close": ("EIO", "EINTR"),
    "fsync": _ROOM,
    "fdatasync": _ROOM,
    "ftruncate": _ROOM,
    "fallocate": _ROOM,
    "mmap": ("ENOMEM",),
    "pipe2": ("EMFILE", "ENFILE"),
    "pidfd_open": ("EMFILE", "ENFILE", "ENOMEM"),
    "eventfd2": ("EMFILE", "ENFILE"),
    "memfd_create": ("EMFILE", "ENFILE", "ENOMEM"),
    "epoll_create1": ("EMFILE", "ENFILE", "ENOMEM"),
    "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "epoll_wait": ("EINTR",),
    "poll": ("EINTR", "ENOMEM"),
    "select": ("EINTR", "ENOMEM"),
    "pselect6": ("EINTR", "ENOMEM"),
    "socket": _DESCRIPTORS,
    "socketpair": _DESCRIPTORS,
    "bind": ("EADDRINUSE", "ENOMEM"),
    "connect": ("ECONNREFUSED", "EADDRNOTAVAIL", "EAGAIN"),
    "accept4": (*_DESCRIPTORS, "ECONNABORTED", "EINTR"),
    "sendto": ("ENOBUFS", "ENOMEM", "ECONNRESET", "EAGAIN", "EINTR"),
    "recvfrom": ("ECONNRESET", "ENOMEM", "EAGAIN", "EINTR"),
    "sendmsg": ("ENOBUFS", "ENOMEM", "ECONNRESET", "EINTR"),
    "recvmsg": ("ECONNRESET", "ENOMEM", "EAGAIN", "EINTR"),
    "setsockopt": ("ENOMEM", "ENOBUFS"),
    "vfork": ("EAGAIN", "ENOMEM"),
    "fork": ("EAGAIN", "ENOMEM"),
    "clone": ("EAGAIN", "ENOMEM"),
    "clone3": ("EAGAIN", "ENOMEM"),
    "flock": ("ENOLCK", "EINTR"),
    "wait4": ("EINTR",),
    "waitid": ("EINTR",),
}
"""system call -> errors"""

_BY_DESCRIPTOR = {"fstat", "lseek", "read", "write", "close", "ftruncate", "fallocate", "mmap"}
_OF_FILES = {"EIO", "ESTALE", "ENOSPC"}
_INJECTED = re.compile(r"^(?:\[pid +(\d+)\] |(\d+) +)?(\w+)\((.*)\) += -1 (E\w+) .*\(INJECTED\)$", re.MULTILINE)
_DESCRIPTOR = re.compile(r"^-?\d+<([^>]*)>")


@dataclass(frozen=True)
class FailedCall:
    """A call that strace has made fail.

    Attributes:
        thread: the id of the thread, or 0 if strace watched one thread only.
        call: the name of the call.
        error: the name of the error.
        is_possible: whether Linux can give that error for that descriptor.
    """

    thread: int
    call: str
    error: str
    is_possible: bool


def failed_calls(log: str) -> list[FailedCall]:
    """Return the calls that strace, run with -y, has made fail.

    Linux never gives a disk's error for a pipe, a socket or an eventfd, and closes these without an error. Our eventfds
    never block, and only a blocking call is interrupted.
    """
    found = []
    for in_brackets, bare, call, arguments, error in _INJECTED.findall(log):
        descriptor = _DESCRIPTOR.match(arguments)
        is_no_file = descriptor is not None and not descriptor[1].startswith("/")
        impossible = is_no_file and (call == "close" or (call in _BY_DESCRIPTOR and error in _OF_FILES))
        impossible |= descriptor is not None and "[eventfd]" in descriptor[1] and error == "EINTR"
        found.append(FailedCall(int(in_brackets or bare or 0), call, error, not impossible))
    return found
