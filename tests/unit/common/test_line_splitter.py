"""Lines of any length, in pieces of any length."""

from __future__ import annotations

import tracemalloc

import pytest

from ftlaunch.common.line_splitter import CUT_MARK, LineSplitter, newest_state


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_come_whole_whatever_the_pieces(size: int) -> None:
    data = b"one\n\ntwo and three\nrest"
    splitter = LineSplitter()
    lines = [line for at in range(0, len(data), size) for line in splitter.split(data[at : at + size])]
    assert lines == [b"one", b"", b"two and three"]
    assert splitter.flush() == b"rest"
    assert splitter.flush() == b""


def split(splitter: LineSplitter, data: bytes, size: int) -> list[bytes]:
    """The lines of data that comes in blocks of a size."""
    return [line for at in range(0, len(data), size) for line in splitter.split(data[at : at + size])]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 100])
def test_a_line_that_is_too_long_is_left_out(size: int) -> None:
    splitter = LineSplitter(4)
    assert split(splitter, b"1234\n12345\nabcdefgh\nok\n", size) == [b"1234", b"ok"]
    assert splitter.too_long == 2


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000])
def test_a_line_that_is_too_long_is_cut(size: int) -> None:
    splitter = LineSplitter(100, long_lines="cut")
    lines = split(splitter, b"x" * 100 + b"\n" + b"y" * 101 + b"\nok\n" + b"z" * 500, size)
    most = 100 - len(CUT_MARK)
    assert lines == [b"x" * 100, b"y" * most + CUT_MARK, b"ok", b"z" * most + CUT_MARK]
    assert (splitter.too_long, splitter.rest) == (2, b"")


def test_a_line_that_is_too_long_is_broken_into_several() -> None:
    splitter = LineSplitter(4, long_lines="break")
    assert splitter.split(b"123") == []
    assert splitter.split(b"45") == [b"12345"]
    assert splitter.split(b"678\n123456\n1") == [b"678", b"123456"]
    assert (splitter.rest, splitter.too_long) == (b"1", 0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 10, 1000])
@pytest.mark.parametrize("form", [b"\r%d %%", b"%d %%\r"])
def test_of_a_progress_bar_the_newest_state_counts(form: bytes, size: int) -> None:
    splitter = LineSplitter(60, long_lines="cut", overwrites=True)
    assert split(splitter, b"".join(form % percent for percent in range(101)), size) == []
    assert newest_state(splitter.rest) == b"100 %"
    assert newest_state(splitter.split(b"\n" + b"x" * 100)[0]) == b"100 %"
    assert splitter.too_long == 1


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
