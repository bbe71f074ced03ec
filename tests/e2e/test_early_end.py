"""A loop of steps() that is left before its last step, with exit code 0: the last step is saved, and the end is said.

Taken out: without `_leave_early` in Job.steps() an older step is saved, and nothing is said.
"""

from __future__ import annotations

import pytest
from tests.support.harness import JOBS, FtJob

from ftlaunch_contract.checkpoint import layout, verify


@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        ("break", 2),
        pytest.param("zip", 1, marks=pytest.mark.long),
        *(pytest.param(how, 1, marks=pytest.mark.slow) for how in ("return", "islice", "raise")),
    ],
)
def test_the_last_step_of_a_loop_that_is_left_early_is_saved(job: FtJob, how: str, ranks: int) -> None:
    job.start("--memory-interval", "20", script=JOBS / "leaves_early.py", args=(how,), ranks=ranks)
    assert job.wait() == 0, job.stderr
    assert "made 7 steps" in job.log(0, 0), "the loop was left where it was meant to be"
    (step, directory), *_ = layout.list_iterations(job.run_dir / "checkpoints")
    verify.verify(directory)
    assert step == 7
    assert "the job ended early at step 7 of 30" in job.stdout + job.stderr
    job.assert_clean()


@pytest.mark.long
def test_weights_that_were_changed_behind_the_loop_are_not_saved_as_its_last_step(job: FtJob) -> None:
    """Taken out: without the fingerprint the zeros are saved as step 7."""
    job.start("--memory-interval", "5", script=JOBS / "leaves_early.py", args=("changed",), ranks=1)
    assert job.wait() == 0, job.stderr
    assert [step for step, _ in layout.list_iterations(job.run_dir / "checkpoints")] == [5]
    assert "its last step is not saved: step 5 is the newest in memory" in job.stdout + job.stderr
    job.assert_clean()
