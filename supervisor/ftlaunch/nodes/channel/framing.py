"""Frames: a length of four bytes, then so many bytes; sealed ones carry a sequence number and an HMAC-SHA256.

No clock, no socket. A length that was altered cuts the bytes elsewhere: the HMAC of the frame is wrong once the frame
is whole, or the frame is refused for its length.
"""

from __future__ import annotations

import hmac
import struct

LONGEST_GREETING = 1 << 10
"""bytes of a frame from somebody who has not proven yet that he knows the token"""
LONGEST_MESSAGE = 4 << 20
"""bytes of a message"""

_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_MAC = 32
PREFIX = _LENGTH.size
"""bytes of a frame before its content: they tell the content's length"""
OVERHEAD = _NUMBER.size + _MAC
"""bytes that sealing adds to the content of a frame"""


class FrameError(Exception):
    """What was received is refused; the message is a clause that follows a colon."""


def framed(content: bytes) -> bytes:
    """A frame of `content`."""
    return _LENGTH.pack(len(content)) + content


def length_in(prefix: bytes | bytearray, longest: int) -> int:
    """Bytes of the content of the frame that begins with `prefix`. Raises FrameError for more than `longest`."""
    (length,) = _LENGTH.unpack_from(prefix)
    if length > longest:
        raise FrameError(f"it sent a frame of {length} bytes, {longest} are allowed")
    return int(length)


class FrameDecoder:
    """Cuts frames out of bytes that come in any pieces."""

    def __init__(self, longest: int) -> None:
        """longest: bytes of a frame's content; it may be changed between two frames."""
        self.longest = longest
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Take bytes as they were received."""
        self._buffer += data

    def take(self) -> bytes | None:
        """The content of the next frame, or None while it is not whole.

        Raises FrameError for a frame that is too long, as soon as its length is known.
        """
        if len(self._buffer) < PREFIX:
            return None
        end = PREFIX + length_in(self._buffer, self.longest)
        if len(self._buffer) < end:
            return None
        content = bytes(memoryview(self._buffer)[PREFIX:end])
        del self._buffer[:end]
        return content

    @property
    def partial(self) -> bool:
        """Whether a frame has begun that is not whole."""
        return bool(self._buffer)


class Sealer:
    """Seals what one side sends, each frame with the next number."""

    def __init__(self, key: bytes) -> None:
        """key: of this direction in this session; never used for anything else."""
        self._key = key
        self._number = 0

    def seal(self, message: bytes) -> bytes:
        """A whole frame that holds `message`. Raises ValueError if it is too long."""
        if len(message) > LONGEST_MESSAGE:
            raise ValueError(f"a message of {len(message)} bytes cannot be sent, {LONGEST_MESSAGE} are allowed")
        numbered = _NUMBER.pack(self._number) + message
        self._number += 1
        return framed(hmac.digest(self._key, numbered, "sha256") + numbered)


class Opener:
    """Opens what the other side has sealed, in the order in which it was sealed."""

    def __init__(self, key: bytes) -> None:
        """key: the sealer's."""
        self._key = key
        self._number = 0

    def open(self, content: bytes) -> bytes:
        """The message in a frame. Raises FrameError unless the other side sealed exactly this one next."""
        if len(content) < OVERHEAD:
            raise FrameError(f"it sent a frame of {len(content)} bytes, too short for a sealed one")
        mac = content[:_MAC]
        numbered = content[_MAC:]
        if not hmac.compare_digest(hmac.digest(self._key, numbered, "sha256"), mac):
            raise FrameError("it sent a frame with a wrong HMAC")
        (number,) = _NUMBER.unpack_from(numbered)
        if number != self._number:
            raise FrameError(f"it sent frame {number} where frame {self._number} was due")
        self._number += 1
        return numbered[_NUMBER.size :]
