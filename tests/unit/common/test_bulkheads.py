"""A call that fails behind a bulkhead costs its result, and is reported now and then."""

from __future__ import annotations

from ftlaunch.common.bulkheads import Bulkheads, FailedCall


def fail() -> int:
    raise OSError(24, "Too many open files")


def test_a_failed_call_costs_its_result() -> None:
    reported: list[FailedCall] = []
    bulkheads = Bulkheads(reported.append)
    assert bulkheads.call("look", lambda: 3, otherwise=0) == 3
    assert bulkheads.call("look", fail, otherwise=7) == 7
    assert [(one.what, one.count) for one in reported] == [("look", 1)]
    assert isinstance(reported[0].error, OSError)


def test_what_fails_all_the_time_is_reported_ever_more_rarely() -> None:
    reported: list[FailedCall] = []
    bulkheads = Bulkheads(reported.append)
    for _ in range(100):
        bulkheads.call("serve", fail, otherwise=0)
    bulkheads.note("look", OSError())
    assert [(one.what, one.count) for one in reported] == [
        *(("serve", count) for count in (1, 2, 4, 8, 16, 32, 64)),
        ("look", 1),
    ]
    assert bulkheads.counts == {"serve": 100, "look": 1}
