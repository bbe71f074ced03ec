"""Real processes fail in known ways: the class, the sentence, and what is done about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.causes import CAUSES, fired, incident, run
from tests.support.harness import FtJob


def spec(job: FtJob, text: str) -> Path:
    path = job.home / "job.yaml"
    path.write_text(f"script: {CAUSES}\nargs: ['12']\n{text}")
    return path


def test_of_two_ends_seen_at_once_the_victims_is_not_the_cause(job: FtJob) -> None:
    """Without the class `comm` in first_cause() it is rank 0, the lower number."""
    assert run(job, "victim 0 5") == 0, job.stderr
    ends = {event["rank"]: event["signal"] for event in job.events("rank_exited")[:2]}
    assert ends == {0: None, 1: "SIGKILL"}
    assert (incident(job)["kind"], incident(job)["rank"]) == ("killed", 1)


# --- last words -----------------------------------------------------------------------------------------------


def error_file(job: FtJob, rank: int, attempt: int = 0) -> Path:
    return job.run_dir / "logs" / f"attempt_{attempt}" / f"rank_{rank}.error.json"


@pytest.mark.long
def test_an_exception_that_is_in_no_log_is_known(job: FtJob) -> None:
    """Without lastwords.keep() the sentence is `exited with code 1`."""
    assert run(job, "hidden 1 5") == 0, job.stderr
    assert "curtain" not in job.log(0, 1)
    assert incident(job)["sentence"].startswith("rank 1 failed with Failed: behind the curtain after step 5")
    assert "in hide" in incident(job)["trace"]
    message = json.loads(error_file(job, 1).read_text())["message"]
    assert message["message"] == "Failed: behind the curtain"
    assert message["extraInfo"]["timestamp"].isdecimal(), "as torchelastic reads it"
    assert not error_file(job, 0).exists()


@pytest.mark.long
@pytest.mark.parametrize("fault", ["fork 1 5", "thread 1 5"])
def test_children_and_threads_leave_none(job: FtJob, fault: str) -> None:
    assert run(job, fault) == 0, job.stderr
    assert not error_file(job, 1).exists()
    assert "Traceback" in job.log(0, 1), "the log has it all the same"
    assert len(job.events("incident")) == (fault == "fork 1 5"), "a thread's exception changes no exit status"


@pytest.mark.long
def test_what_an_earlier_run_has_left_is_not_taken_for_this_ones(job: FtJob) -> None:
    """Same folder, same attempt number. Without the unlink, or with the whole log read, NameError is blamed."""
    assert run(job, "name 1 5", "--max-restarts", "0") == 1
    assert incident(job)["sentence"].startswith("rank 1 failed with NameError")
    assert run(job, "exit 1 9", "--max-restarts", "1") == 0, job.stderr
    assert fired(job)[1:] == ["exit 1 0"]
    assert incident(job)["sentence"].startswith("rank 1 exited with code 17 after step")


# --- what is done about it ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("policy", "attempts"), [("on-failure", 2), ("by-cause", 1), ("never", 1)])
@pytest.mark.parametrize("kind", ["name", "arguments"])
def test_an_error_before_the_first_step_does_not_burn_the_budget(
    job: FtJob, kind: str, policy: str, attempts: int
) -> None:
    assert run(job, f"{kind} 1 -1 99", "--max-restarts", "50", "--restart-policy", policy) == 1
    assert len(fired(job)) == attempts
    assert incident(job)["kind"] == "exception-at-start"
    end = {"on-failure": "giving up: twice the same error before the first step",
           "by-cause": "not restarting (restart policy: by-cause, and the rule for exception-at-start says give-up)",
           "never": "not restarting (restart policy: never)"}[policy]  # fmt: skip
    assert incident(job)["sentence"].endswith(end)
    assert end in job.stderr.partition("the job has failed")[2]
    job.assert_clean()


def test_the_rule_decides_by_cause(job: FtJob) -> None:
    assert run(job, "nan 1 5", "--restart-policy", "by-cause") == 1
    assert len(fired(job)) == 1
    assert incident(job)["sentence"].endswith("by-cause, and the rule for numerical says give-up)")


@pytest.mark.long
def test_a_jobs_own_rule_comes_first(job: FtJob) -> None:
    text = (
        "restart_policy: by-cause\nfault_rules:\n"
        "  - {exit: 17, log: 'eth[0-9]+: link is down', class: network, action: give-up, meaning: call the desk}\n"
    )
    assert run(job, "switch 1 5", script=spec(job, text)) == 1
    assert (incident(job)["kind"], incident(job)["action"]) == ("network", "give-up")
    assert "rank 1 exited with code 17 after step 5 (call the desk); not restarting" in incident(job)["sentence"]


def test_waiting_takes_the_longest_backoff(job: FtJob) -> None:
    assert run(job, "disk 1 5", "--restart-policy", "by-cause") == 0, job.stderr
    assert 0.15 <= incident(job)["delay"] <= 0.25


@pytest.mark.long
@pytest.mark.parametrize("held", [True, False])
def test_the_same_error_over_and_over_ends_the_job(job: FtJob, held: bool) -> None:
    """Also where steps are made again up to there (not held): they are not new."""
    assert run(job, "exit 1 5 99", "--max-restarts", "50", "--max-same-error", "3", held=held) == 1
    assert len(fired(job)) == 3
    assert incident(job)["sentence"].endswith(
        "giving up: 3 times in a row the same error without a new step (--max-same-error)"
    )


def test_restarts_without_a_new_step_end_the_job(job: FtJob) -> None:
    assert run(job, "sigkill 1 5 99", "--max-restarts", "50", "--max-without-progress", "2", held=True) == 1
    assert len(fired(job)) == 3
    assert "giving up: 2 restarts in a row without a new step" in incident(job)["sentence"]


@pytest.mark.long
def test_preemption_is_free_and_hangs_have_a_budget_of_their_own(job: FtJob) -> None:
    assert run(job, "sigterm 1 5 2", "--max-restarts", "0") == 0, job.stderr
    assert len(fired(job)) == 2
    assert "done; 0 of 0 restarts used; 2 more did not count" in job.stderr


@pytest.mark.long
def test_a_hang_is_counted_apart(job: FtJob) -> None:
    options = ("--max-restarts", "1", "--max-hang-restarts", "2", "--hang-timeout", "0.5s")
    assert run(job, "sleep 1 5 2", *options) == 0, job.stderr
    assert [event["hang_restarts_left"] for event in job.events("incident")] == [1, 0]
    assert [event["restarts_left"] for event in job.events("incident")] == [1, 1]
    assert "done; 0 of 1 restarts used, and 2 of 2 after hangs" in job.stderr


@pytest.mark.long
@pytest.mark.parametrize(("after", "code"), [("10", 0), ("11", 1)])
def test_the_budget_is_full_again_after_steps(job: FtJob, after: str, code: int) -> None:
    """Two crashes, ten steps apart, on a budget of one: --refill-after 10 lets the second pass, 11 does not."""
    options = ("--max-restarts", "1", "--refill-after", after)
    assert run(job, "exit 1 2; exit 1 12", *options, steps=16, held=True) == code, job.stderr
    assert len(fired(job)) == 2


HOOK_OF_ITS_OWN = """
import json, sys
import torch
import ftlaunch_hooks as ft

def hook(kind, error, trace):
    print(json.dumps({"level": "error", "kind": kind.__name__}), file=sys.stderr, flush=True)

sys.excepthook = hook
job = ft.attach(model=torch.nn.Linear(2, 2))
for step in job.steps(8):
    if step == 3:
        raise ValueError("loss of sample 77 is bad")
"""


@pytest.mark.long
def test_an_exception_that_the_scripts_own_hook_shows_is_named(job: FtJob) -> None:
    """Taken out: without `error_file.come_first` the rank has exited with code 1, and nothing says why."""
    script = job.home / "train.py"
    script.write_text(HOOK_OF_ITS_OWN)
    job.start("--max-restarts", "0", script=script, args=(), ranks=1)
    assert job.wait() == 1, job.stderr
    [incident] = job.events("incident")
    assert "rank 0 failed with ValueError: loss of sample 77 is bad after step 3" in incident["sentence"]
    assert '{"level": "error", "kind": "ValueError"}' in job.log(0, 0), "the script's hook is called as well"
    job.assert_clean()
