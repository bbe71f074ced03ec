"""The steps between copies keep them to their share of the processors, and of the time."""

from __future__ import annotations

import pytest

from ftlaunch.nodes.peers.plan.copy_costs import PROCESSOR_SHARE, TIME_SHARE, steps_between


@pytest.mark.parametrize("step_seconds", [0.01, 0.2, 3.0])
@pytest.mark.parametrize(("seconds", "processor_seconds"), [(0.004, 0.001), (1.3, 0.1), (1.3, 1.3), (40.0, 0.5)])
def test_copies_keep_to_their_shares(seconds: float, processor_seconds: float, step_seconds: float) -> None:
    steps = steps_between(seconds, processor_seconds, step_seconds, processors=4)
    between = steps * step_seconds
    assert seconds <= TIME_SHARE * between
    assert processor_seconds <= PROCESSOR_SHARE * between * 4
    fewer = (steps - 1) * step_seconds
    assert steps == 1 or seconds > TIME_SHARE * fewer or processor_seconds > PROCESSOR_SHARE * fewer * 4, "no fewer do"


def test_every_step_is_copied_where_nothing_is_known_of_steps() -> None:
    assert steps_between(1.0, 1.0, step_seconds=0.0, processors=4) == 1


def test_a_link_that_the_job_fills_makes_copies_rarer() -> None:
    """A copy of the same bytes takes longer on a busy link, so more steps lie between two copies."""
    idle = steps_between(0.05, 0.01, step_seconds=0.2, processors=2)
    full = steps_between(2.6, 0.01, step_seconds=0.2, processors=2)
    assert (idle, full) == (5, 260)
