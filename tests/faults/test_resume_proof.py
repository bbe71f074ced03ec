"""A resume proves itself: steps that are made again are compared with those of the attempt that has died.

With the comparison taken out (`StepProof.end_step` without `_compare`), each of these tests fails.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

PROVED = JOBS / "proved.py"


def start(job: FtJob, *options: str, ranks: int = 1, **settings: str) -> None:
    job.out.mkdir(exist_ok=True)
    env = {"FT_OUT": str(job.out), **{f"FT_{name.upper()}": value for name, value in settings.items()}}
    job.start(
        "--backoff-first", "0.05s", "--verify-resume", "auto", *options, script=PROVED, args=(), env=env, ranks=ranks
    )


def answer_of(job: FtJob, event: str) -> dict[str, Any]:
    assert (job.out / "killed").exists(), "the kill was made"
    [found] = job.events(event)
    return found


def test_a_resume_that_is_exact_is_verified(job: FtJob) -> None:
    start(job, "--memory-interval", "4", ranks=2, kill="1:11:before")
    assert job.wait() == 0, job.stderr
    found = answer_of(job, "resume_verified")
    assert (found["step"], found["answer"]) == (8, "same")
    assert found["steps"] >= 3
    assert not job.events("resume_differs")
    assert f"verified; the {found['steps']} steps made again were the same" in job.stderr


@pytest.mark.long
def test_the_step_under_way_is_enough(job: FtJob) -> None:
    """A snapshot at every step: nothing but the loss of the step under way is left to compare."""
    start(job, kill="0:11:after")
    assert job.wait() == 0, job.stderr
    found = answer_of(job, "resume_verified")
    assert (found["answer"], found["steps"]) == ("same", 1), job.journal_text


@pytest.mark.long
@pytest.mark.parametrize(("differs", "what", "step"), [("state", "loss", 11), ("rates", "learning rate", 12)])
def test_what_differs_is_named_at_once(job: FtJob, differs: str, what: str, step: int) -> None:
    start(job, "--memory-interval", "5", differs=differs, kill="0:13:after")
    assert job.wait() == 0, job.stderr
    found = answer_of(job, "resume_differs")
    assert (found["rank"], found["step"], found["what"]) == (0, step, what), job.journal_text
    assert f"the resumed run differs: step {step} was made again on rank 0" in job.stderr
    logs = "".join(path.read_text() for path in (job.run_dir / "logs").rglob("*.log"))
    assert logs.count(f"rank 0 has made step {step} again with") == 1
    assert not job.events("resume_verified")


@pytest.mark.long
def test_such_a_job_ends_there_where_it_is_to(job: FtJob) -> None:
    start(job, "--on-difference", "stop", "--memory-interval", "5", differs="state", kill="0:13:after", steps="100")
    assert job.wait() == 1, job.stderr
    answer_of(job, "resume_differs")
    assert not (job.out / "final_0").exists()


@pytest.mark.long
def test_another_number_of_threads_is_said_to_round(job: FtJob) -> None:
    start(job, "--memory-interval", "5", differs="threads", kill="0:14:after")
    assert job.wait() == 0, job.stderr
    found = answer_of(job, "resume_verified")
    assert (found["answer"], found["what"]) == ("rounded", "loss"), job.journal_text
    assert not job.events("resume_differs")


@pytest.mark.slow
def test_a_stop_makes_a_step_more_which_the_next_run_makes_again(job: FtJob) -> None:
    start(job, ranks=2, steps="4000")
    job.wait_step(8)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    step = job.events("job_stopped")[0]["step"]
    copies = sorted(path.name for path in (job.run_dir / "checkpoints" / "fingerprints").iterdir())
    assert copies == ["rank_00000", "rank_00001"]
    start(job, ranks=2, steps=str(step + 5))
    assert job.wait() == 0, job.stderr
    [found] = job.events("resume_verified")
    assert (found["step"], found["answer"], found["steps"]) == (step, "same", 1), job.journal_text


@pytest.mark.long
def test_verification_can_be_turned_off(job: FtJob) -> None:
    start(job, "--verify-resume", "off", steps="4000")
    job.wait_step(8)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    step = job.events("job_stopped")[0]["step"]
    start(job, "--verify-resume", "off", steps=str(step + 3))
    assert job.wait() == 0, job.stderr
    assert job.events("resumed")[-1]["step"] == step
    assert job.events("resume_verified") == [], "no step was made again"


@pytest.mark.long
def test_status_and_report_tell_of_a_difference(job: FtJob) -> None:
    start(job, "--memory-interval", "5", differs="state", kill="0:13:after", steps="2000")
    job.wait_event("resume_differs")
    found = wait_for(lambda: "differs" in json.dumps(job.status()), "a status that tells of the difference")
    assert found
    job.supervisor.terminate()
    assert job.wait() == 75
