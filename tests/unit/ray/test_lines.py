"""Lines out of blocks of bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ftlaunch_ray.lines import Lines


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(text: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    lines = Lines("[a] ")
    told = b"".join(lines.feed(text[begin:end]) for begin, end in pairwise(places)) + lines.end()
    *whole, rest = text.split(b"\n")
    assert told == b"".join(b"[a] " + line + b"\n" for line in [*whole, *([rest] if rest else [])])


def test_a_line_without_an_end_is_cut() -> None:
    lines = Lines("")
    told = b"".join(lines.feed(b"x" * (16 << 10)) for _ in range(10))
    assert told.count(b"\n") == 2
    assert len(told + lines.end()) == (160 << 10) + 2
