"""Rates as people write them, and a writer that is held to one."""

from __future__ import annotations

import pytest

from ftlaunch.common.rates import format_rate, parse_rate
from ftlaunch_contract.files.rate_limit import Bandwidth


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200MB/s", 200e6), ("200 MB/s", 200e6), ("1.5GiB/s", 1.5 * (1 << 30)), ("100kB/s", 1e5), ("100KB", 1e5),
        ("7MBps", 7e6), ("1B/s", 1), ("1TiB/s", 1 << 40), (" 3MiB/s ", 3 << 20),
    ],
)  # fmt: skip
def test_rates_are_read_as_people_write_them(text: str, rate: float) -> None:
    assert parse_rate(text) == rate
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize(
    "text", ["200", "0MB/s", "-1MB/s", "1Mb/s", "1MB/h", "MB/s", "1e3MB/s", "inf B/s", "0.1B/s", ""]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rate|than a byte"):
        parse_rate(text)


def test_formatted_rates_are_short() -> None:
    assert [format_rate(rate) for rate in (200e6, 3 << 20, 1500.0, 7.5)] == ["200MB/s", "3MiB/s", "1500B/s", "7.5B/s"]


def test_a_writer_waits_for_what_it_has_written() -> None:
    waits: list[float] = []

    def hurry(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    bound = Bandwidth(1000.0, hurry)
    for _ in range(5):
        bound.spent(500_000)
    assert len(waits) == 3, "from the moment it is to hurry it waits no more"
    assert [round(seconds / 500) for seconds in waits] == [1, 2, 3]  # this clock does not wait with it
