"""Lines on how far long work has come."""

from __future__ import annotations

import pytest

from ftlaunch_contract.progress import SlowWork, under_way, whole

GIB = 1 << 30


def said(total: int | None, *work: tuple[float, int], unit: str = "") -> list[str]:
    lines, now = list[str](), [0.0]
    slow = SlowWork("verifying", total, lines.append, unit, lambda: now[0])
    for seconds, count in work:
        now[0] += seconds
        slow.advance(count)
    slow.finish()
    return lines


def test_short_work_says_nothing() -> None:
    assert said(GIB, (1.0, GIB // 2), (3.9, GIB // 2)) == []


def test_long_work_says_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    assert said(48 * GIB, *[(1.0, 2 * GIB)] * 24) == [
        "verifying: 10.0 of 48.0 GiB, 2.0 GiB/s, 19 s left",
        "verifying: 30.0 of 48.0 GiB, 2.0 GiB/s, 9 s left",
        "verifying: 48.0 GiB in 24 s, 2.0 GiB/s",
    ]


@pytest.mark.parametrize(
    ("done", "total", "seconds", "line"),
    [
        (1, None, 0.0, "1 B"),
        (3 * GIB, None, 3.0, "3.0 GiB, 1.0 GiB/s"),
        (0, 100, 5.0, "0 of 100 B"),
        (GIB, 10 * GIB, 1000.0, "1.0 of 10.0 GiB, 1.0 MiB/s, 2 h 30 min left"),
        (GIB, 10 * GIB, 100_000.0, "1.0 of 10.0 GiB, 10.5 KiB/s, 250 h 0 min left"),
        (11 * GIB, 10 * GIB, 11.0, "11.0 GiB, 1.0 GiB/s"),  # the total was too low: it is not shown
    ],
)
def test_a_line_says_what_is_known(done: int, total: int | None, seconds: float, line: str) -> None:
    assert under_way(done, total, seconds) == line


def test_what_is_counted_may_be_something_else() -> None:
    assert under_way(5, 20, 10.0, "steps") == "5 of 20 steps, 0.5 steps/s, 30 s left"
    assert whole(20, 40.0, "steps") == "20 steps in 40 s, 0.5 steps/s"
    assert whole(0, 0.0) == "0 B in 0 s"
