"""Splits blocks of bytes into lines, in bounded memory however long a line is. Pure.

Readers of growing files (journals, logs of ranks) and of pipes feed each block as they read it.
"""

from __future__ import annotations

from typing import Literal

LONGEST_LINE = 16 << 20
"""bytes; eight times as long as one journal event of a job with 100,000 ranks"""
CUT_MARK = b" ... (cut here: the log has the whole line)"
"""ends a line that was cut"""


class LineSplitter:
    """Splits one stream of bytes into lines."""

    def __init__(
        self,
        longest: int = LONGEST_LINE,
        *,
        long_lines: Literal["drop", "cut", "break"] = "drop",
        overwrites: bool = False,
    ) -> None:
        """Begin at the start of a line.

        Args:
            longest: the most bytes of a line.
            long_lines: what becomes of a longer line. "drop" leaves the line out. "cut" keeps its beginning, with
                CUT_MARK as the last of `longest` bytes, as soon as the line is too long, because its end may never
                come. "break" makes several lines of it: where its end has not come, what there is counts as a line.
            overwrites: count only the newest state of a progress bar towards `longest`, and drop earlier states where
                room is needed.
        """
        self._longest = longest
        self._long_lines = long_lines
        self._overwrites = overwrites
        self._parts: list[bytes] = []  # of the unfinished line; joined once at its end, because each join copies
        self._length = 0  # bytes in `_parts`
        self._is_passing = False  # whether the unfinished line is too long, so that its rest is dropped
        self.too_long = 0
        """number of lines that were dropped or cut"""

    @property
    def rest(self) -> bytes:
        """The unfinished line; empty for the rest of a line that is dropped or cut."""
        return b"".join(self._parts)

    def split(self, block: bytes) -> list[bytes]:
        """Take the next block of the stream, and return the lines that are complete now, without their newlines.

        The beginning of a line that has just been cut or broken is among the lines.
        """
        lines: list[bytes] = []
        *ended, begun = block.split(b"\n")
        for piece in ended:
            self._extend(piece, lines)
            if not self._is_passing:
                lines.append(self.rest)
            self._begin_line()
        self._extend(begun, lines)
        if self._length > self._longest:
            lines.append(self.flush())
        return lines

    def flush(self) -> bytes:
        """Return the unfinished line as it is, and begin a new line.

        Callers use this when the rest of the line will not come, for example at the end of a file.
        """
        rest = self.rest
        self._begin_line()
        return rest

    def _begin_line(self) -> None:
        self._parts = []
        self._length = 0
        self._is_passing = False

    def _extend(self, piece: bytes, lines: list[bytes]) -> None:
        """Append `piece` to the unfinished line. Append a line that is cut now to `lines`."""
        if self._is_passing or not piece:
            return
        self._parts.append(piece)
        self._length += len(piece)
        if self._length <= self._longest or self._long_lines == "break":
            return
        line = self.rest
        if self._overwrites:
            state = newest_state(line)
            if len(state) <= self._longest:
                end = b"\r" if line.endswith(b"\r") else b""
                self._parts = [b"\r", state, end]
                self._length = len(state)
                return
            line = state
        self.too_long += 1
        if self._long_lines == "cut":
            lines.append(line[: self._longest - len(CUT_MARK)] + CUT_MARK)
        self._begin_line()
        self._is_passing = True


def newest_state(line: bytes) -> bytes:
    """Return what a terminal shows of a line: of a progress bar, only what follows the last carriage return."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
