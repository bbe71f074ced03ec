"""Others are told what happens, whatever hangs, fails or floods on the way, and the job never waits for it."""

from __future__ import annotations

import base64
import os
import signal
import sys

import pytest
from tests.support.harness import FtJob
from tests.support.leftovers import alive, assert_ended
from tests.support.notified import SECRET, Hook, notifiers, outcomes, read_notices, start, writer


def test_an_incident_and_the_end_are_told_by_command_shell_and_webhook(job: FtJob, hooks: list[Hook]) -> None:
    hooks.append(hook := Hook(200))
    url = f"http://me:{SECRET}@127.0.0.1:{hook.port}/T0/{SECRET}?key={SECRET}"
    listed, shelled, done = job.home / "listed", job.home / "shelled", job.home / "done"
    start(
        job, {"command": writer(listed)}, {"command": f"cat >> {shelled}; echo >> {shelled}"}, {"url": url},
        {"command": writer(done), "on": ["done"]}, FAULT="1 7",
    )  # fmt: skip
    assert job.wait() == 0, job.stderr
    assert len(job.events("incident")) == 1, "the fault fired"
    (incident,) = job.events("incident")
    for bodies in (read_notices(listed), read_notices(shelled), hook.bodies):
        assert [body["notify"] for body in bodies] == ["incident", "done"]
        assert {name: bodies[0][name] for name in incident} == incident
        assert bodies[0]["job_id"] == job.job_id
        assert incident["sentence"] in bodies[0]["text"]
    assert [body["notify"] for body in read_notices(done)] == ["done"]
    credentials = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert hook.requests == [("POST", f"/T0/{SECRET}?key={SECRET}", f"Basic {credentials}")] * 2
    masked = f"http://127.0.0.1:{hook.port}/***"
    assert sorted(outcomes(job, "notified")) == sorted(
        [(kind, name) for kind in ("incident", "done") for name in (sys.executable, "cat", masked)]
        + [("done", sys.executable)]
    )
    assert SECRET not in job.journal_text + job.stderr + job.stdout
    job.assert_clean()


def test_no_process_where_nobody_is_told(job: FtJob) -> None:
    start(job, steps=1_000_000)
    job.wait_step(5)
    assert notifiers(job) == []
    job.supervisor.terminate()
    assert job.wait() == 143


def test_given_up_is_told(job: FtJob) -> None:
    start(job, {"command": writer(job.home / "told")}, options=("--max-restarts", "0"), FAULT="0 7")
    assert job.wait() == 1
    assert [body["notify"] for body in read_notices(job.home / "told")] == ["incident", "give_up"]


@pytest.mark.slow
def test_half_of_a_silence_is_told_once_and_again_for_another_silence(job: FtJob) -> None:
    start(job, {"command": writer(job.home / "told")}, steps=1_000_000, options=("--hang-timeout", "8s"))
    for count in (1, 2):
        job.wait_step(job.wait_step(5)["ranks"][0]["step"] + 20)
        os.kill(job.pids()[1], signal.SIGSTOP)
        suspected = job.wait_event("hang_suspected", count)
        os.kill(job.pids()[1], signal.SIGCONT)
        assert suspected["age"] >= 4
        assert (suspected["rank"], suspected["limit"]) == (1, 8.0)
        job.wait_event("notified", count)
    job.wait_step(job.wait_step(5)["ranks"][0]["step"] + 20)
    job.supervisor.terminate()
    assert job.wait() == 143
    assert len(job.events("hang_suspected")) == 2, "once for each silence"
    assert job.events("incident") == []
    assert [body["notify"] for body in read_notices(job.home / "told")] == ["hang_suspected"] * 2


# --- faults -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_notifier_that_was_killed_is_replaced_and_what_it_had_is_said(job: FtJob) -> None:
    notify = {"command": writer(job.home / "told")}, {"command": "sleep 60", "timeout": "60s", "on": ["incident"]}
    start(job, *notify, steps=1_000_000, FAULT="1 7")
    job.wait_event("notified")
    (first,) = notifiers(job)
    first.kill()
    failed = job.wait_event("notify_failed")
    assert (failed["target"], failed["error"]) == ("sleep", "the notifier ended (-9) before it had answered")
    job.wait_event("recovered")
    os.kill(job.pids()[0], signal.SIGKILL)
    job.wait_event("notified", 2)
    assert [body["notify"] for body in read_notices(job.home / "told")] == ["incident"] * 2
    job.supervisor.terminate()
    job.wait()
    job.assert_clean()


@pytest.mark.slow
def test_a_notifier_that_is_stopped_holds_up_nothing(job: FtJob) -> None:
    start(job, {"command": writer(job.home / "told")}, steps=1_000_000)
    job.wait_step(5)
    (stopped,) = notifiers(job)
    stopped.suspend()
    os.kill(job.pids()[1], signal.SIGKILL)
    job.wait_event("recovered")
    assert job.events("notify_failed") == [], "the notifier has not been given up meanwhile"
    job.supervisor.terminate()
    assert job.wait() == 143
    (failed,) = job.events("notify_failed")
    assert failed["error"] == "the notifier ended (-9) before it had answered"
    assert not alive(stopped.pid)
    job.assert_clean()


def test_a_sweep_of_the_ranks_leaves_the_notifier_and_its_commands_alone(job: FtJob) -> None:
    """Taken out by hand: without its pid in `HelperProcesses.pids` the sweep after the incident kills it."""
    command = f"while ! test -e {job.home / 'go'}; do sleep 0.01; done"
    start(job, {"command": command, "timeout": "60s", "retries": 0, "on": ["incident"]}, steps=1_000_000, FAULT="1 7")
    job.wait_event("recovered")
    (job.home / "go").touch()
    job.wait_event("notified")
    job.supervisor.terminate()
    job.wait()
    assert job.events("notify_failed") == []


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_notifier(job: FtJob) -> None:
    start(job, {"command": "sleep 1000", "timeout": "5m"}, steps=1_000_000, FAULT="1 7")
    job.wait_event("recovered")
    (notifier,) = notifiers(job)
    job.supervisor.kill()
    assert_ended([notifier.pid])
