"""Which system calls are made to fail, and with which errors: those that Linux can give there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_DESCRIPTORS = ("EMFILE", "ENFILE", "ENOMEM")
_DISK = ("EIO", "ESTALE")
_ROOM = ("ENOSPC", "EIO")

ERRORS: Mapping[str, Sequence[str]] = {
    "openat": (*_DESCRIPTORS, *_DISK, "EACCES", "ENOSPC"),
    "getdents64": (*_DISK, "ENOMEM"),
    "newfstatat": (*_DISK, "EACCES", "ENOMEM"),
    "fstat": _DISK,
    "readlink": (*_DISK, "EACCES"),
    "statfs": _DISK,
    "fstatfs": _DISK,
    "getcwd": ("ENOENT",),
    "mkdir": (*_ROOM, "EACCES", "ESTALE"),
    "unlink": (*_DISK, "EACCES"),
    "rmdir": (*_DISK, "EACCES"),
    "rename": (*_ROOM, "EACCES", "ESTALE"),
    "link": (*_ROOM, "EACCES", "ESTALE"),
    "write": (*_ROOM, "ESTALE"),
    "pwrite64": (*_ROOM, "ESTALE"),
    "fsync": _ROOM,
    "fdatasync": _ROOM,
    "ftruncate": _ROOM,
    "fallocate": _ROOM,
    "pread64": _DISK,
    "pipe2": ("EMFILE", "ENFILE"),
    "pidfd_open": ("EMFILE", "ENFILE", "ENOMEM"),
    "eventfd2": ("EMFILE", "ENFILE"),
    "memfd_create": ("EMFILE", "ENFILE", "ENOMEM"),
    "epoll_create1": ("EMFILE", "ENFILE", "ENOMEM"),
    "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "epoll_wait": ("EINTR",),
    "poll": ("EINTR", "ENOMEM"),
    "socket": _DESCRIPTORS,
    "socketpair": _DESCRIPTORS,
    "bind": ("EADDRINUSE", "ENOMEM"),
    "accept4": (*_DESCRIPTORS, "ECONNABORTED"),
    "sendto": ("ENOBUFS", "ENOMEM", "ECONNRESET"),
    "recvfrom": ("ECONNRESET", "ENOMEM", "EAGAIN"),
    "sendmsg": ("ENOBUFS", "ENOMEM", "ECONNRESET"),
    "recvmsg": ("ECONNRESET", "ENOMEM", "EAGAIN"),
    "vfork": ("EAGAIN", "ENOMEM"),
    "fork": ("EAGAIN", "ENOMEM"),
    "clone": ("EAGAIN", "ENOMEM"),
    "clone3": ("EAGAIN", "ENOMEM"),
    "flock": ("ENOLCK", "EINTR"),
    "wait4": ("EINTR",),
}
"""system call -> errors; `read` is left out: of a pipe or a socket of ours it fails with none of these"""
