"""The saver's stdin: requests, one JSON object a line, and whether the supervisor has more to say."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from typing import Any


class Requests:
    """Reads without reading ahead into where `waiting` could not look."""

    def __init__(self, fd: int) -> None:
        """fd: read until it ends."""
        self._fd, self._buffer = fd, b""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                yield json.loads(line)
            elif block := os.read(self._fd, 1 << 16):
                self._buffer += block
            else:
                return

    def waiting(self, seconds: float) -> bool:
        """Wait until there is more to read, or the supervisor is gone, `seconds` at most; True when so."""
        return b"\n" in self._buffer or bool(select.select([self._fd], [], [], seconds)[0])
