"""Hangs that are not told by steps, each in a sentence with what was measured; and what is learned of healthy waits."""

from __future__ import annotations

import json

import pytest
from tests.support.harness import JOBS, FtJob

pytestmark = pytest.mark.long

HEALTHY = JOBS / "healthy.py"


def start(job: FtJob, shape: str, *limits: str) -> None:
    job.start("--grace", "1s", *limits, script=HEALTHY, args=(str(job.out), shape))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "limits", "rule", "ranks", "sentence"),
    [
        ("hung_at_the_end", ("--exit-timeout", "2s"), "exit", {0}, "rank 0 has neither ended nor moved on for"),
        ("hung_in_teardown", ("--teardown-timeout", "2s"), "progress", {0, 1}, "is hung in teardown after step 20"),
        ("hung_in_evaluation", ("--eval-timeout", "2s"), "progress", {1}, "rank 1 is hung in evaluation after step 20"),
        ("hung_without_a_word", ("--log-timeout", "6s"), "log", {0, 1}, "no rank has written a line of log for"),
        ("hung_and_idle", ("--idle-timeout", "2s"), "idle", {0, 1}, "no rank has used a processor, read, written or"),
    ],
)
def test_a_rule_beside_steps(
    job: FtJob, shape: str, limits: tuple[str, ...], rule: str, ranks: set[int], sentence: str
) -> None:
    start(job, shape, "--hang-timeout", "off", *limits)
    assert job.wait() == 0, job.stderr
    assert shape in job.fired()[0]
    [seen], [incident] = job.events("hang_seen"), job.events("incident")
    assert seen["rule"] == rule
    assert (incident["kind"], incident["rank"] in ranks) == ("hang", True)
    assert sentence in incident["sentence"]
    assert seen["age"] > seen["limit"] == float(limits[1].rstrip("s"))
    job.assert_clean()


def test_off_is_off(job: FtJob) -> None:
    """For three seconds nobody says a word."""
    start(job, "says_nothing", "--hang-timeout", "off")
    assert job.wait() == 0, job.stderr
    assert job.events("incident") == []


def test_what_a_run_has_taught_is_there_in_the_next(job: FtJob) -> None:
    """Several evaluations, as a supervisor that was held up in one learns nothing from that."""
    noted = job.run_dir / "limits.json"
    start(job, "evaluates_often")
    assert job.wait() == 0, job.stderr
    first = json.loads(noted.read_text())["longest"]
    assert first["eval"] >= 0.7
    start(job, "says_nothing")
    assert job.wait() == 0, job.stderr
    assert json.loads(noted.read_text())["longest"]["eval"] == first["eval"]


@pytest.mark.parametrize("content", ['{"version": 1', '{"version": 1, "job_id": "another", "longest": {"eval": 9}}'])
def test_what_is_damaged_or_foreign_is_said_and_left_out(job: FtJob, content: str) -> None:
    job.run_dir.mkdir()
    (job.run_dir / "limits.json").write_text(content)
    start(job, "says_nothing")
    assert job.wait() == 0, job.stderr
    assert f"cannot use {job.run_dir / 'limits.json'}" in job.stderr
    assert "limits are learned anew" in job.stderr
    noted = json.loads((job.run_dir / "limits.json").read_text())
    assert (noted["job_id"], "eval" in noted["longest"]) == (job.job_id, False)
