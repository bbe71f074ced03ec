"""Kubeflow's Trainer is told how far a job is, by HTTPS, with its certificate and the token of the pod."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.harness import FtJob
from tests.support.prometheus import BEATS
from tests.support.trainer_server import Elsewhere, TrainerServer
from tests.support.waiting import wait_for

from ftlaunch.views.metrics import trainjob_reporter

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed (Debian: openssl)"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TrainerServer]:
    made = TrainerServer(tmp_path, "secret-1")
    yield made
    made.close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.close()


def start(job: FtJob, server: TrainerServer, *options: str, steps: int, **env: str) -> Path:
    """A job as Trainer starts it; returns the file of the token."""
    token = job.home / "token"
    token.write_text(f"{server.token}\n")
    given = {
        "KUBEFLOW_TRAINER_SERVER_URL": server.url,
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(server.ca_cert),
        "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        "no_proxy": "*",
    }
    options = ("--no-warm", "--backoff-first", "0s", *options)
    job.start(*options, script=BEATS, args=(str(steps), "0.01"), env={**given, **env})
    return token


@pytest.mark.slow
def test_progress_and_the_end_are_told(job: FtJob, server: TrainerServer) -> None:
    """The end is told before the supervisor ends, and its pod with it. Taken out (not waited for): often no 100 %."""
    start(job, server, steps=1300, LOSS="0.125", FAULT="1 30", JOBSET_RESTART_ATTEMPT="2")
    wait_for(lambda: any("progressPercentage" in one["trainerStatus"] for one in server.accepted), "the progress")
    assert job.wait() == 0, job.stderr
    told = [one["trainerStatus"] for one in server.accepted]
    middle = next(one for one in told if "progressPercentage" in one)
    assert 0 <= middle["progressPercentage"] < 100
    assert 0 <= middle["estimatedRemainingSeconds"] < 60
    last = told[-1]
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    metrics = {one["name"]: one["value"] for one in middle["metrics"]}
    assert (metrics["loss"], metrics["restart_attempt"]) == ("0.125", "2")
    assert int(metrics["step"]) >= 0
    assert all(isinstance(one["value"], str) for status in told for one in status["metrics"])
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", status["lastUpdatedTime"]) for status in told)
    assert server.refused == 0
    assert job.events("job_started")[0]["jobset_restart"] == 2
    assert len(job.events("incident")) == 1
    job.assert_clean()


@pytest.mark.slow
def test_a_server_that_refuses_is_said_once_and_a_new_token_is_read(job: FtJob, server: TrainerServer) -> None:
    """Taken out (the token read once): after an hour Kubernetes' new token was not known, and nothing was told."""
    token = start(job, server, steps=1_000_000)
    wait_for(lambda: server.accepted, "the first report")
    server.token = "secret-2"
    said = "cannot tell Kubeflow's Trainer of the progress: the server says 401 Unauthorized; the job goes on"
    wait_for(lambda: said in job.stderr, "the refusal")
    count = len(server.accepted)
    token.write_text("secret-2")
    wait_for(lambda: len(server.accepted) > count, "a report with the new token")
    wait_for(lambda: "Kubeflow's Trainer takes the progress again" in job.stderr, "the good news")
    job.supervisor.terminate()
    assert job.wait() == 143, job.stderr
    assert job.stderr.count("cannot tell Kubeflow") == 1
    percents = [one["trainerStatus"].get("progressPercentage") for one in server.accepted]
    assert 100 not in percents


def test_it_may_be_left_to_the_script(job: FtJob, server: TrainerServer) -> None:
    start(job, server, "--trainjob-status", "off", steps=200)
    assert job.wait() == 0, job.stderr
    assert server.accepted == []


def test_the_token_goes_to_nobody_else(job: FtJob, server: TrainerServer, elsewhere: Elsewhere) -> None:
    """Taken out: urllib follows a redirect, and takes the token along."""
    server.status, server.location = 302, elsewhere.url
    start(job, server, steps=300)
    assert job.wait() == 0, job.stderr
    assert "the server says 302" in job.stderr
    assert server.refused > 0 and elsewhere.visitors == []
    job.run_dir = job.home / "other"
    start(job, server, "--fresh", steps=100, KUBEFLOW_TRAINER_SERVER_URL="http://localhost:1/")
    assert job.wait() == 0, job.stderr
    assert "its address does not begin with https://" in job.stderr


def test_looks_are_as_far_apart_as_trainer_asks() -> None:
    assert trainjob_reporter.INTERVAL_SECONDS >= 5.0
