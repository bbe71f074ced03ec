"""Small disks of all kinds for tests; whoever cannot mount them skips."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"`{' '.join(map(str, command))}` is not to be had here: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def tmpfs(place: Path, size: str) -> Iterator[Path]:
    """A disk of so many bytes (`5m`), mounted at `place`."""
    place.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "ftlaunch-test", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def resize(place: Path, size: str) -> None:
    """Give a tmpfs another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)


@contextmanager
def ext4(image: Path, place: Path, options: str = "") -> Iterator[str]:
    """An ext4 file system in a file, on a loop device, mounted at `place`; the device's name."""
    place.mkdir(exist_ok=True)
    with ExitStack() as stack:
        device = _run("losetup", "--find", "--show", image)
        stack.callback(subprocess.run, ["losetup", "--detach", device], check=True)
        _run("mount", "-t", "ext4", *(["-o", options] if options else []), device, place)
        stack.callback(subprocess.run, ["umount", "-l", place], check=True)
        yield device


def make_ext4(image: Path, size: int) -> None:
    """Format a file of `size` bytes."""
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)


@contextmanager
def private_dir() -> Iterator[Path]:
    """A directory in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ftlaunch-test-") as directory:
        yield Path(directory)
