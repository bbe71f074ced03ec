"""Rates: what is written is read back, and no text but a rate is one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.common.rates import format_rate, parse_rate, parse_size

RATES = st.floats(min_value=1, max_value=1e18, exclude_max=True)


@given(RATES | st.integers(min_value=1, max_value=10**17).map(float))
def test_a_rate_that_is_written_is_read_back_exactly(rate: float) -> None:
    assert parse_rate(format_rate(rate)) == rate


@given(st.text(alphabet="0123456789.KkMGTiBps/ ") | st.text())
def test_a_text_is_a_rate_or_is_refused(text: str) -> None:
    try:
        rate = parse_rate(text)
    except ValueError as error:
        assert repr(text) in str(error)
    else:
        assert 1 <= rate < 1e18
        assert parse_rate(format_rate(rate)) == rate


@given(st.integers(min_value=1, max_value=10**5), st.sampled_from(["B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB"]))
def test_a_rate_is_a_size_a_second(number: int, unit: str) -> None:
    assert parse_rate(f"{number}{unit}/s") == parse_rate(f"{number} {unit}ps") == parse_size(f"{number}{unit}")
