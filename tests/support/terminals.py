"""A program in a terminal of its own: its screen can be read, and keys can be typed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import pyte

from tests.support.waiting import DEADLINE


class Terminal:
    """A program that starts at once and is killed at the end of the `with` block."""

    def __init__(
        self, argv: Sequence[str], lines: int, columns: int, env: Mapping[str, str] | None = None, cwd: object = None
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._fd, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=cwd,  # type: ignore[arg-type]
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines), **(env or {})},
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)

    @property
    def text(self) -> str:
        """The text on the screen, with stripped lines."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def cells(self, text: str) -> list[Any]:
        """Return the cells of a text, in the last line that shows the text: each has `fg`, `bg`, `bold` and `reverse`.

        The colours of a cell in reverse are as the program sent them; the screen shows them swapped.
        """
        row, line = next((row, line) for row, line in reversed([*enumerate(self._screen.display)]) if text in line)
        begin = line.index(text)
        return [self._screen.buffer[row][column] for column in range(begin, begin + len(text))]

    @property
    def all_cells(self) -> list[Any]:
        """Every cell of the screen."""
        return [self._screen.buffer[row][column] for row in range(self._screen.lines)
                for column in range(self._screen.columns)]  # fmt: skip

    def type(self, keys: str) -> None:
        """Type keys into the terminal."""
        os.write(self._fd, keys.encode())

    def wait_for(self, *texts: str) -> str:
        """Wait until the screen shows one of some texts; return the whole screen."""
        deadline = time.monotonic() + DEADLINE
        while not any(text in self.text for text in texts):
            assert time.monotonic() < deadline, f"waited in vain for {texts}:\n{self.text}"
            assert self.read() or self._shows(texts), f"it ended without {texts}:\n{self.text}"
        return self.text

    def _shows(self, texts: Sequence[str]) -> bool:
        return any(text in self.text for text in texts)

    def read(self) -> bool:
        """Read what the program has written; return False once the program has closed the terminal."""
        if not select.select([self._fd], [], [], 0.2)[0]:
            return True
        try:
            block = os.read(self._fd, 1 << 16)
        except OSError:  # nobody has the other end any more
            return False
        self.raw += block
        self._stream.feed(block)
        return bool(block)

    def end(self) -> int:
        """Wait for the program's end; return its exit code."""
        deadline = time.monotonic() + DEADLINE
        while self.read():
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        return self.process.wait(DEADLINE)
