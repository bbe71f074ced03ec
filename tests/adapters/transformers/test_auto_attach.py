"""A script that knows nothing of us is kept safe where that is asked for."""

from __future__ import annotations

import pytest
from tests.adapters.kit import FrameworkJob
from tests.support.harness import FtJob
from tests.support.packages import require

require("transformers", reason="Transformers is not installed (make frameworks)")
require("accelerate", reason="Accelerate is not installed (make frameworks)")
pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("--no-warm", marks=pytest.mark.slow), "--warm"])
def test_an_unmodified_trainer_is_wrapped(job: FtJob, way: str) -> None:
    """Started as a plain process, and forked. Taken out: without the hook it begins at its first step again."""
    run = FrameworkJob("hf.py", job, "plain", "max_steps=6")
    undisturbed = run.undisturbed()
    run.start("kill 0 4", "--auto-attach", way, more=("plain=1",))
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["kill 0 4 0"]
    run.assert_same(undisturbed)
    assert len((job.out / "steps_0").read_text().split()) == 6
    assert "--auto-attach: Trainer.train() is kept safe" in job.log(0, 0)
    job.assert_clean()


def test_without_it_a_line_says_what_could_be(job: FtJob) -> None:
    run = FrameworkJob("hf.py", job, "plain", "max_steps=2")
    run.start(more=("plain=1",))
    assert job.wait() == 0, job.stderr
    assert job.log(0, 0).count("--auto-attach keeps it safe as it is") == 1
    job.assert_clean()
