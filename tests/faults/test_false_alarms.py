"""Healthy jobs of awkward shapes, as real processes: none is killed.

With limits that they would break if they were judged by steps alone. Shapes that take hours are in
tests/unit/health/test_lives.py.
"""

from __future__ import annotations

import pytest
from tests.support.harness import JOBS, FtJob

pytestmark = pytest.mark.long

HEALTHY = JOBS / "healthy.py"


@pytest.mark.parametrize(
    ("shape", "limits"),
    [
        ("evaluates", ("--hang-timeout", "2s", "--eval-timeout", "20s")),
        ("rank_0_saves", ("--hang-timeout", "2s", "--checkpoint-timeout", "20s")),
        ("rank_0_saves", ("--hang-timeout", "2s", "--checkpoint-timeout", "off")),
        ("is_stopped", ("--hang-timeout", "4s")),
        ("one_says_all", ("--hang-timeout", "2s", "--log-timeout", "2s")),
        ("says_nothing", ("--hang-timeout", "2s", "--idle-timeout", "2s")),
        ("tears_down", ("--hang-timeout", "2s", "--teardown-timeout", "20s")),
        pytest.param(
            *("child_works", ("--hang-timeout", "1s", "--startup-timeout", "2s", "--exit-timeout", "2s")),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_left_alone(job: FtJob, shape: str, limits: tuple[str, ...]) -> None:
    job.start("--grace", "1s", *limits, script=HEALTHY, args=(str(job.out), shape))
    assert job.wait() == 0, job.stderr
    assert job.events("incident") == [], job.journal_text
    assert shape in job.fired()[0]
    job.assert_clean()
