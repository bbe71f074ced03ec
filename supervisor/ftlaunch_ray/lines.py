"""Cuts an agent's output into lines and puts the node's address before each. Pure; used by `session`."""

from __future__ import annotations

from ftlaunch.common.line_splitter import LineSplitter

_MAX_LINE_BYTES = 64 << 10  # a longer line is cut into several


class Lines:
    """Cuts a stream of blocks into lines, and prefixes each line."""

    def __init__(self, before: str) -> None:
        self._prefix = before.encode()
        self._splitter = LineSplitter(_MAX_LINE_BYTES, long_lines="break")

    def feed(self, block: bytes) -> bytes:
        """Take the next block of the stream. Return the lines that are complete now, prefixed; may be empty."""
        return b"".join(self._prefix + line + b"\n" for line in self._splitter.split(block))

    def end(self) -> bytes:
        """Return the last line, prefixed and ended by a newline, if the stream ended without one; else nothing."""
        return self.feed(b"\n") if self._splitter.rest else b""
