"""Frames: four bytes of length, then the content. A sealed frame has a sequence number and an HMAC-SHA256. Pure.

The length itself is not sealed. An altered length cuts the bytes at the wrong place: then the HMAC of the frame is
wrong, or the frame is refused for its length.
"""

from __future__ import annotations

import hmac
import struct

LONGEST_GREETING = 1 << 10
"""bytes of a frame from a peer that has not proven yet that it knows the token"""
LONGEST_MESSAGE = 4 << 20
"""bytes of a message"""

_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_MAC = 32
PREFIX = _LENGTH.size
"""bytes of a frame before its content; they hold the content's length"""
OVERHEAD = _NUMBER.size + _MAC
"""bytes that sealing adds to the content of a frame"""


class FrameError(Exception):
    """Received bytes are refused. The message is a clause that follows a colon."""


def encode_frame(content: bytes) -> bytes:
    """Return the frame that holds `content`."""
    return _LENGTH.pack(len(content)) + content


def decode_length(prefix: bytes | bytearray, longest: int) -> int:
    """Return the length, in bytes, of the content of the frame that begins with `prefix`.

    Raises:
        FrameError: the length is above `longest`.
    """
    (length,) = _LENGTH.unpack_from(prefix)
    if length > longest:
        raise FrameError(f"it sent a frame of {length} bytes, {longest} are allowed")
    return int(length)


class FrameDecoder:
    """Cuts a stream of bytes, received in any pieces, into frames."""

    def __init__(self, longest: int) -> None:
        """Accept frames of at most `longest` bytes of content; the limit can be changed between two frames."""
        self.longest = longest
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Return the content of the next frame, or None while the frame is not whole.

        Raises:
            FrameError: the frame is too long; raised as soon as its length is known.
        """
        if len(self._buffer) < PREFIX:
            return None
        end = PREFIX + decode_length(self._buffer, self.longest)
        if len(self._buffer) < end:
            return None
        content = bytes(memoryview(self._buffer)[PREFIX:end])
        del self._buffer[:end]
        return content


class Sealer:
    """Seals the messages of one direction, each with the next number."""

    def __init__(self, key: bytes) -> None:
        """Seal with `key`, which belongs to this direction and session and is used for nothing else."""
        self._key = key
        self._number = 0

    def seal(self, message: bytes) -> bytes:
        """Return the sealed frame that holds `message`.

        Raises:
            ValueError: the message is longer than LONGEST_MESSAGE.
        """
        if len(message) > LONGEST_MESSAGE:
            raise ValueError(f"a message of {len(message)} bytes cannot be sent, {LONGEST_MESSAGE} are allowed")
        numbered = _NUMBER.pack(self._number) + message
        self._number += 1
        return encode_frame(hmac.digest(self._key, numbered, "sha256") + numbered)


class Opener:
    """Opens the frames of one direction, in the order in which they were sealed."""

    def __init__(self, key: bytes) -> None:
        """Open with `key`, the key of the sealer."""
        self._key = key
        self._number = 0

    def open(self, content: bytes) -> bytes:
        """Return the message in the content of a sealed frame.

        Raises:
            FrameError: this is not exactly the frame that the other side sealed next.
        """
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
