"""A job of ChatLearn's shape: a driver and four actors. Each of these is killed, and the job ends as undisturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.harness import FtJob

pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_rlhf_actors.py"
KILLS = {"policy": 40, "value": 60, "reference": 7, "reward": 12}
"""actor -> the call in which it dies; a call of each snapshot counts with those that are trained"""
SECONDS = 240.0
"""of a run, in which each of four actors imports torch, and torch's compiler, twice"""
OFTEN = ("policy",)  # in CI: one that is trained


def run(job: FtJob, *args: str) -> dict[str, str]:
    """Run the script to its end; returns the digests of the trained models."""
    job.start(script=SCRIPT, args=("--out", str(job.out), *args), ranks=1)
    assert job.wait(SECONDS) == 0, job.stderr
    return {name: (job.out / name).read_text() for name in ("policy", "value")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    job = FtJob(tmp_path_factory.mktemp("calm"))
    try:
        return run(job)
    finally:
        job.dispose()


@pytest.mark.long
@pytest.mark.parametrize(
    "actor", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in KILLS]
)
def test_an_actor_that_is_killed_costs_no_step(job: FtJob, undisturbed: dict[str, str], actor: str) -> None:
    assert run(job, "--kill", f"{actor}:{KILLS[actor]}") == undisturbed
    (incident,) = job.events("incident")
    assert f"the actor {actor!r} has ended with -9" in incident["sentence"]
    resumed = job.events("resumed")[-1]
    assert resumed["source"] == "memory"
    assert resumed["step"] > 0
    job.assert_clean()
