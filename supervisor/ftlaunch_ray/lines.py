"""Lines out of blocks of bytes. Pure."""

from __future__ import annotations

_LONGEST = 64 << 10  # bytes of a line; a longer one is cut into several


class Lines:
    """Cuts a stream into lines, each with the same words before it."""

    def __init__(self, before: str) -> None:
        self._before, self._partial = before.encode(), b""

    def feed(self, block: bytes) -> bytes:
        """The whole lines that have come by now."""
        *lines, self._partial = (self._partial + block).split(b"\n")
        if len(self._partial) > _LONGEST:
            lines.append(self._partial)
            self._partial = b""
        return b"".join(self._before + line + b"\n" for line in lines)

    def end(self) -> bytes:
        """The last line, where it has no end."""
        return self.feed(b"\n") if self._partial else b""
