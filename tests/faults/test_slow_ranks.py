"""A rank that the others wait for at every step is named, with hooks and without, wherever its time goes."""

from __future__ import annotations

import json
import sys

import pytest
from tests.support.harness import JOBS, FtJob

SLOW = JOBS / "slow.py"


def start(job: FtJob, part: str, *words: str, options: tuple[str, ...] = (), until: int = 10**9) -> None:
    job.start("--grace", "1s", *options, script=SLOW, args=(part, str(until), *words))


ATTACHED, UNMODIFIED = ("1000000", "attach"), ("1000000",)


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "words"),
    [
        pytest.param("data", ATTACHED, id="data, attached", marks=pytest.mark.slow),
        pytest.param("backward", UNMODIFIED, id="backward, unmodified"),
        pytest.param("after", ATTACHED, id="after, attached", marks=pytest.mark.slow),
        pytest.param("after", UNMODIFIED, id="after, unmodified", marks=pytest.mark.slow),
        pytest.param("data", UNMODIFIED, id="data, unmodified", marks=pytest.mark.slow),
        pytest.param("backward", ATTACHED, id="backward, attached", marks=pytest.mark.slow),
    ],
)
def test_the_slow_rank_is_named(job: FtJob, part: str, words: tuple[str, ...]) -> None:
    start(job, part, *words)
    slow = job.wait_event("rank_slow")
    assert slow["rank"] == 1
    assert slow["own"] > 0.05 > slow["others"]
    assert "rank 1 is slow: its own part of a step takes" in slow["sentence"]
    status = job.status()
    assert status is not None
    assert [sentence.split(":")[0] for sentence in status["slow"]] == ["rank 1 is slow"]
    job.supervisor.terminate()
    job.wait()
    assert len(job.events("rank_slow")) == 1, "once"
    assert "ftlaunch: rank 1 is slow" in job.stderr
    job.assert_clean()


@pytest.mark.slow
def test_somebody_is_told_and_that_it_is_over(job: FtJob) -> None:
    told = job.home / "told"
    command = [sys.executable, "-c", f"import sys; open({str(told)!r}, 'a').write(sys.stdin.read() + '\\n')"]
    spec = {"script": str(SLOW), "args": ["data", "100", "1000000"], "notify": {"command": command, "on": ["slow"]}}
    (job.home / "job.yaml").write_text(json.dumps(spec))
    job.start("--grace", "1s", script=job.home / "job.yaml", args=())
    over = job.wait_event("rank_slow_over")
    assert over["rank"] == 1
    job.wait_event("notified")
    body = json.loads(told.read_text().splitlines()[0])
    assert (body["notify"], body["rank"]) == ("slow", 1)
    job.supervisor.terminate()
    job.wait()


@pytest.mark.slow
def test_a_restart_where_the_spec_asks_for_it(job: FtJob) -> None:
    """With as many restarts as there are; after that it is told only."""
    start(job, "data", "150", "attach", options=("--on-slow", "restart", "--max-restarts", "1"))
    assert job.wait() == 0, job.stderr
    [incident] = job.events("incident")
    assert (incident["kind"], incident["rank"], incident["verdict"]) == ("slow", 1, "restart")
    assert job.events("resumed")[-1]["steps_lost"] == 0
    job.assert_clean()


@pytest.mark.slow
def test_off_is_off(job: FtJob) -> None:
    start(job, "data", "120", options=("--on-slow", "off"))
    assert job.wait() == 0, job.stderr
    assert job.events("rank_slow") == []
