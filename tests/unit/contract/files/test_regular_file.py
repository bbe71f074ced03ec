"""What is no regular file, or a huge one, is refused at once."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from ftlaunch_contract.files.regular_file import open_regular, read_regular


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    with open_regular(tmp_path / "a") as file:
        assert file.read() == b"12345"
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "b")


def test_a_fifo_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OSError, match=r"it is no regular file \(a FIFO\)"):
        read_regular(tmp_path / "a")


def test_a_directory_a_socket_and_a_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(OSError, match=r"it is no regular file \(a device\)"):
        open_regular(Path("/dev/zero"))
    with tempfile.TemporaryDirectory(prefix="ft") as short, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{short}/s")
        with pytest.raises(OSError, match=r"it is no regular file \(a socket\)"):
            open_regular(Path(short, "s"))


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has more than 10 bytes, which no such file has"):
        read_regular(tmp_path / "a", 10)
