"""What is written where the kernel looks for a command line, and when nothing is."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from ftlaunch_hooks.programs.shown_command import show_command


def stat_of(tmp_path: Path, memory: ctypes.Array[ctypes.c_char], length: int) -> Path:
    """A /proc/PID/stat whose arguments lie in `memory`."""
    fields = ["0"] * 50
    fields[45], fields[46] = str(ctypes.addressof(memory)), str(ctypes.addressof(memory) + length)
    path = tmp_path / "stat"
    path.write_text(f"1 (a b) c) {' '.join(fields)}\n")
    return path


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["py", "-u", "t.py"], b"py\0-u\0t.py\0\0\0\0\0\0\0"),
        (["py", "-u", "train.py", "x"], b"py\0-u\0train.py\0x\0"),
        (["py", "-u", "train.py", "--long"], b"py\0-u\0train.py\0-\0"),
    ],
)
def test_arguments_are_overwritten_within_their_room(tmp_path: Path, argv: list[str], shown: bytes) -> None:
    memory = ctypes.create_string_buffer(b"py\0server.py\x00123\0|behind")
    assert show_command(argv, stat_of(tmp_path, memory, 17))
    assert memory.raw[:17] == shown
    assert memory.raw[17:24] == b"|behind"


def test_nothing_is_written_where_the_program_is_another_one(tmp_path: Path) -> None:
    memory = ctypes.create_string_buffer(b"python\0server.py\0")
    before = memory.raw
    for stat in (stat_of(tmp_path, memory, 17), tmp_path / "nowhere"):
        assert not show_command(["py", "t.py"], stat)
    (tmp_path / "stat").write_text("nonsense")
    assert not show_command(["python", "t.py"], tmp_path / "stat")
    assert not show_command(["python", "t.py"], stat_of(tmp_path, memory, 3))
    assert memory.raw == before
