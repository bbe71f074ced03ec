"""Lines of any length, in pieces of any length."""

from __future__ import annotations

import tracemalloc

import pytest

from ftlaunch.common.line_splitter import LineSplitter


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_come_whole_whatever_the_pieces(size: int) -> None:
    data = b"one\n\ntwo and three\nrest"
    splitter = LineSplitter()
    lines = [line for at in range(0, len(data), size) for line in splitter.split(data[at : at + size])]
    assert lines == [b"one", b"", b"two and three"]
    assert splitter.take_rest() == b"rest"
    assert splitter.take_rest() == b""


@pytest.mark.parametrize("size", [1, 3, 4, 5, 100])
def test_a_line_that_is_too_long_is_left_out_or_cut(size: int) -> None:
    data = b"1234\n12345\nabcdefgh\nok\n"
    for mark, expected in ((None, [b"1234", b"ok"]), (b"+", [b"1234", b"1234+", b"abcd+", b"ok"])):
        splitter = LineSplitter(4, mark)
        lines = [line for at in range(0, len(data), size) for line in splitter.split(data[at : at + size])]
        assert (lines, splitter.too_long) == (expected, 2)


def test_a_line_of_gigabytes_takes_no_memory() -> None:
    """Taken out (blocks were joined until the end of the line came): a gigabyte."""
    splitter, block = LineSplitter(1 << 20), b"x" * (1 << 16)
    tracemalloc.start()
    try:
        for _ in range(1 << 14):  # a gigabyte
            assert splitter.split(block) == []
        assert splitter.split(b"\nnext\n") == [b"next"]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
