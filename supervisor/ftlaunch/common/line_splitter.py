"""Splits blocks of bytes into lines, in bounded memory however long a line is. Pure.

Readers of growing files (journals, logs of ranks) feed each block as they read it.
"""

from __future__ import annotations

LONGEST_LINE = 16 << 20
"""bytes; eight times as long as one journal event of a job with 100,000 ranks"""


class LineSplitter:
    """Splits one stream of bytes into lines."""

    def __init__(self, longest: int = LONGEST_LINE, cut_mark: bytes | None = None) -> None:
        """Begin at the start of a line.

        Args:
            longest: the most bytes of a line. A longer line is dropped, or cut if there is a `cut_mark`.
            cut_mark: bytes to append to the first `longest` bytes of a line that is too long; None drops such a line.
        """
        self._longest = longest
        self._cut_mark = cut_mark
        self._parts: list[bytes] = []  # of the unfinished line; joined once at its end, because each join copies
        self._length = 0  # bytes in `_parts`
        self._is_passing = False  # whether the unfinished line is too long, so that its rest is dropped
        self.too_long = 0
        """number of lines that were longer than `longest`"""

    def split(self, block: bytes) -> list[bytes]:
        """Take the next block of the stream, and return the lines that are complete now, without their newlines.

        If there is a `cut_mark`, the cut beginning of a line that has just become too long is among the lines.
        """
        lines: list[bytes] = []
        first, *others = block.split(b"\n")
        lines += self._extend(first)
        for piece in others:
            if not self._is_passing:
                lines.append(b"".join(self._parts))
            self._begin_line()
            lines += self._extend(piece)
        return lines

    def take_rest(self) -> bytes:
        """Return the unfinished line as it is, and begin a new line.

        Callers use this when the rest of the line will not come, for example at the end of a file.
        """
        rest = b"".join(self._parts)
        self._begin_line()
        return rest

    def _begin_line(self) -> None:
        self._parts = []
        self._length = 0
        self._is_passing = False

    def _extend(self, piece: bytes) -> list[bytes]:
        """Append `piece` to the unfinished line. Return the line cut short, if it is too long now and cuts are kept."""
        if self._is_passing or not piece:
            return []
        self._parts.append(piece)
        self._length += len(piece)
        if self._length <= self._longest:
            return []
        self.too_long += 1
        beginning = b"".join(self._parts)[: self._longest]
        self._begin_line()
        self._is_passing = True
        return [] if self._cut_mark is None else [beginning + self._cut_mark]
