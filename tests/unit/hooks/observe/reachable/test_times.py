"""A variable that holds what a clock shows is none that is lost; a small number on a machine that has just begun is."""

from __future__ import annotations

import time

import pytest

from ftlaunch_hooks.observe.reachable.fingerprints import is_time

HOUR = 3600.0


@pytest.fixture
def up_since(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds for which the machine has been running: its clocks count from its start."""
    seconds = 120.0
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    monkeypatch.setattr(time, "perf_counter", lambda: seconds)
    return seconds


@pytest.mark.usefixtures("up_since")
@pytest.mark.parametrize("number", [0.0, 0.5, 1.0, 9.0, 100.0, 300.0])
def test_a_number_is_no_time_because_the_machine_has_just_begun(number: float) -> None:
    """Taken out: with ten minutes around the clock, all of them are times on a machine that runs for two minutes."""
    assert not is_time(number)


def test_what_a_clock_has_shown_is_a_time(up_since: float) -> None:
    assert is_time(up_since - 1)
    assert is_time(time.time() - 30)


def test_what_a_clock_has_shown_long_ago_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100 * HOUR)
    assert is_time(100 * HOUR - 60)
    assert not is_time(99 * HOUR)
    assert not is_time(time.time() - HOUR)
    assert not is_time(1)
