"""Small disks and small memory: file systems that only root may mount, so that tests are skipped without root."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.leftovers import mark

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount file systems: run as root")

# Flags of unshare(2) and mount(2).
_CLONE_NEWNS = 0x20000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"`{' '.join(map(str, command))}` is not to be had here: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def tmpfs(place: Path, size: str) -> Iterator[Path]:
    """Mount a disk of `size` (`5m`) at `place` for the time of the context."""
    place.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "ftlaunch-test", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def resize(place: Path, size: str) -> None:
    """Give a mounted tmpfs another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)


@contextmanager
def ext4(image: Path, place: Path, options: str = "") -> Iterator[str]:
    """Mount an ext4 file system, which lies in a file, by a loop device; yield the name of the device."""
    place.mkdir(exist_ok=True)
    with ExitStack() as stack:
        device = _run("losetup", "--find", "--show", image)
        stack.callback(subprocess.run, ["losetup", "--detach", device], check=True)
        _run("mount", "-t", "ext4", *(["-o", options] if options else []), device, place)
        stack.callback(subprocess.run, ["umount", "-l", place], check=True)
        yield device


def make_ext4(image: Path, size: int) -> None:
    """Format a new file of `size` bytes as ext4."""
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)


@contextmanager
def private_dir() -> Iterator[Path]:
    """Yield a directory in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"ftlaunch-test-{mark()}") as directory:
        yield Path(directory)


@contextmanager
def small_tmpfs(directory: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of `size`, as mount takes it, at a new directory."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)  # maps of it may still be alive
        directory.rmdir()


def in_small_shm(size: str) -> Callable[[], None]:
    """Return a `preexec_fn` for Popen that gives the process, and its children, a small /dev/shm, as in a container."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), "cannot make a small /dev/shm")

    def enter() -> None:
        check(libc.unshare(_CLONE_NEWNS))
        check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size}".encode()))

    return enter
