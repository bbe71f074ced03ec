"""Frames in pieces, and frames as nobody sealed them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.nodes.channel.framing import (
    LONGEST_GREETING,
    LONGEST_MESSAGE,
    OVERHEAD,
    FrameDecoder,
    FrameError,
    Opener,
    Sealer,
    encode_frame,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
CONTENTS = st.lists(st.binary(max_size=60), max_size=8)


def decoded(decoder: FrameDecoder, data: bytes) -> list[bytes]:
    decoder.add(data)
    found = []
    while (content := decoder.next_frame()) is not None:
        found.append(content)
    return found


@given(CONTENTS, st.data())
def test_any_split_of_the_bytes_gives_the_same_frames(contents: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(encode_frame, contents))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    decoder = FrameDecoder(LONGEST_GREETING)
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += decoded(decoder, whole[begin:end])
    assert found == contents


def test_byte_by_byte() -> None:
    decoder = FrameDecoder(LONGEST_GREETING)
    assert [c for byte in encode_frame(b"one") + encode_frame(b"") for c in decoded(decoder, bytes([byte]))] == [
        b"one",
        b"",
    ]


def test_a_length_is_refused_before_its_content_has_come() -> None:
    decoder = FrameDecoder(LONGEST_GREETING)
    assert decoded(decoder, encode_frame(bytes(LONGEST_GREETING))) == [bytes(LONGEST_GREETING)]
    with pytest.raises(FrameError, match="1025 bytes, 1024 are allowed"):
        decoded(decoder, encode_frame(bytes(LONGEST_GREETING + 1))[:4])


def test_the_bound_may_change_between_two_frames_that_came_together() -> None:
    decoder = FrameDecoder(LONGEST_GREETING)
    decoder.add(encode_frame(b"proof") + encode_frame(bytes(5000)))
    assert decoder.next_frame() == b"proof"
    decoder.longest = LONGEST_MESSAGE
    assert decoder.next_frame() == bytes(5000)


def opened(opener: Opener, data: bytes) -> list[bytes]:
    return [opener.open(content) for content in decoded(FrameDecoder(LONGEST_MESSAGE + OVERHEAD), data)]


@given(CONTENTS)
def test_what_was_sealed_is_opened(messages: list[bytes]) -> None:
    sealer = Sealer(KEY)
    assert opened(Opener(KEY), b"".join(map(sealer.seal, messages))) == messages


@given(st.binary(max_size=60), st.data())
def test_a_flipped_bit_anywhere_is_refused(message: bytes, data: st.DataObject) -> None:
    """A length that has grown is refused with what follows: so many bytes follow below."""
    sealer = Sealer(KEY)
    frame = bytearray(sealer.seal(message))
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    opener = Opener(KEY)
    decoder = FrameDecoder(LONGEST_MESSAGE + OVERHEAD)
    with pytest.raises(FrameError):
        for content in decoded(decoder, bytes(frame) + b"\xff" * (LONGEST_MESSAGE + OVERHEAD)):
            opener.open(content)


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=5), st.data())
def test_a_replayed_or_reordered_frame_is_refused(messages: list[bytes], data: st.DataObject) -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    frames = [sealer.seal(message) for message in messages]
    first, second = data.draw(st.tuples(*[st.integers(0, len(frames) - 1)] * 2).filter(lambda p: p[1] != p[0] + 1))
    with pytest.raises(FrameError, match=r"it sent frame \d where frame \d was due"):
        opened(opener, b"".join([*frames[: first + 1], frames[second]]))


def test_a_dropped_frame_is_noticed() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    _, second = sealer.seal(b"stop"), sealer.seal(b"go")
    with pytest.raises(FrameError, match="it sent frame 1 where frame 0 was due"):
        opened(opener, second)


def test_a_frame_of_the_other_direction_is_refused() -> None:
    with pytest.raises(FrameError, match="wrong HMAC"):
        opened(Opener(KEY), Sealer(OTHER_KEY).seal(b"stop"))


def test_a_frame_too_short_to_be_sealed_is_refused() -> None:
    with pytest.raises(FrameError, match="39 bytes, too short"):
        Opener(KEY).open(bytes(OVERHEAD - 1))


def test_the_longest_message_passes_and_a_longer_one_is_not_sealed() -> None:
    longest = bytes(LONGEST_MESSAGE)
    assert opened(Opener(KEY), Sealer(KEY).seal(longest)) == [longest]
    with pytest.raises(ValueError, match=f"{LONGEST_MESSAGE + 1} bytes cannot be sent"):
        Sealer(KEY).seal(longest + b"!")
