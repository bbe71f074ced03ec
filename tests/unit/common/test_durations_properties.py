"""Durations: what is written is read back, and no text but a duration is one."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftlaunch.common.durations import LONGEST, format_duration, parse_duration


@given(st.floats(min_value=0, max_value=LONGEST, allow_nan=False))
@example(1e-10)
@example(0.009)  # 9 times 0.001 is not 0.009
@example(1.0000000001)
@example(2.0**-24)  # its last digit lies between two
def test_a_duration_that_is_written_is_read_back_exactly(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=int(LONGEST)))
def test_whole_seconds_are_written_without_a_point(seconds: int) -> None:
    text = format_duration(seconds)
    assert "." not in text
    assert parse_duration(text) == seconds


@given(st.text(alphabet="0123456789.dhms \t-+e") | st.text())
def test_a_text_is_a_duration_or_is_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        assert repr(text.strip()) in str(error)
    else:
        assert math.isfinite(seconds)
        assert 0 <= seconds <= LONGEST
        assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("9ms", 0.009), ("1h30m", 5400.0), ("1d 1h 1m 1s 1ms", 90061.001), ("0.1s0.2ms", 0.1002)]
)
def test_parts_add_up_without_an_error_of_rounding(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
