"""How often the pages of ranks are looked at: what it takes stays small, however many ranks there are."""

from __future__ import annotations

import pytest

from ftlaunch.engine.watch import tick_seconds


@pytest.mark.parametrize(
    ("cost_seconds", "tick"),
    [(0.0, 0.1), (0.0005, 0.1), (0.004, 0.5), (0.02, 1.0), (0.025, 1.0), (0.1, 4.0), (1.0, 10.0)],
)
def test_a_costly_look_is_taken_seldom(cost_seconds: float, tick: float) -> None:
    assert tick_seconds(cost_seconds, is_fast=False) == pytest.approx(tick)


@pytest.mark.parametrize(("cost_seconds", "tick"), [(0.0, 0.01), (0.02, 0.1), (1.0, 1.0)])
def test_what_is_about_to_happen_is_looked_for_once_a_second_at_least(cost_seconds: float, tick: float) -> None:
    assert tick_seconds(cost_seconds, is_fast=True) == pytest.approx(tick)
