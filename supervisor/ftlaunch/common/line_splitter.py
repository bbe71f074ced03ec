"""Splits what is read block by block into lines, in bounded memory however long a line is. Pure."""

from __future__ import annotations

LONGEST_LINE = 16 << 20
"""bytes: eight times what 100,000 ranks fill in one event of a journal"""


class LineSplitter:
    """The lines of one stream of bytes."""

    def __init__(self, longest: int = LONGEST_LINE, cut_mark: bytes | None = None) -> None:
        """Begin at the start of a line.

        Args:
            longest: bytes of a line; a longer one is left out, but for its beginning where `cut_mark` is given.
            cut_mark: what stands behind the beginning of a line that was too long; None: such a line is left out whole.
        """
        self._longest, self._cut_mark = longest, cut_mark
        self._parts: list[bytes] = []  # of the line that has no end yet: joined once, and not at each block
        self._length = 0  # bytes of these parts
        self._is_passing = False  # the line that has no end yet is too long
        self.too_long = 0
        """lines that were longer than `longest`"""

    def split(self, block: bytes) -> list[bytes]:
        """Return the lines that end in the block, without their ends, and the beginning of one that gets too long."""
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
        """Return what has come of a line without its end, and begin a new one: nothing more of that line will come."""
        rest = b"".join(self._parts)
        self._begin_line()
        return rest

    def _begin_line(self) -> None:
        self._parts, self._length, self._is_passing = [], 0, False

    def _extend(self, piece: bytes) -> list[bytes]:
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
