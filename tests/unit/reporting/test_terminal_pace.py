"""How often the logs of ranks are looked at: what it takes of a processor stays small, however many there are."""

from __future__ import annotations

import pytest

from ftlaunch.reporting.terminal import poll_seconds


@pytest.mark.parametrize(("cost_seconds", "pause"), [(0.0, 0.2), (0.001, 0.2), (0.02, 2.0), (1.0, 5.0)])
def test_a_costly_look_is_taken_seldom(cost_seconds: float, pause: float) -> None:
    assert poll_seconds(cost_seconds) == pytest.approx(pause)
