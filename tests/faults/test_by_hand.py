"""A script that steps without torch.optim has unknown steps: the rule on errors before the first step is not for it.

Taken out: without `hand_made_steps.noter` the job is given up after the second failure.
"""

from __future__ import annotations

import pytest
from tests.support.harness import JOBS, FtJob

SCRIPT = JOBS / "by_hand.py"


@pytest.mark.long
def test_steps_that_are_made_by_hand_are_not_known(job: FtJob) -> None:
    job.start("--backoff-first", "0.05s", "--no-warm", script=SCRIPT, args=("3",), ranks=1)
    assert job.wait() == 0, job.stderr
    assert [incident["kind"] for incident in job.events("incident")] == ["exception"] * 3
    assert "before its first step" not in job.stderr
    assert "its steps are not known: no optimizer of torch.optim makes them" in job.stderr
    job.assert_clean()


@pytest.mark.slow
def test_an_optimizer_that_has_not_stepped_is_before_its_first_step(job: FtJob) -> None:
    job.start("--backoff-first", "0.05s", "--no-warm", script=SCRIPT, args=("3", "optim"), ranks=1)
    assert job.wait() == 1, job.stderr
    assert [incident["kind"] for incident in job.events("incident")] == ["exception-at-start"] * 2
    assert "giving up: twice the same error before the first step" in job.stderr
    job.assert_clean()
