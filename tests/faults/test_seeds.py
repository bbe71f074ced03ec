"""A script that draws without a seed of its own, or walks through a set, finds the same in every attempt of its job.

Taken out, each by itself: PYTHONHASHSEED of `environment._shared_variables` (the orders differ without warm ranks
and after a stop), the seed in `engine/main.py` (all draws differ), `seeds.keep` in `writer.commit` (draws differ where
only the checkpoints are left), `import_hook.install` in `forked_rank` and the sitecustomize of plain ranks (the same of
one of the two ways).
"""

from __future__ import annotations

import shutil

import pytest
from tests.support.harness import JOBS, FtJob

SCRIPT = JOBS / "unseeded.py"


def start(job: FtJob, *options: str, steps: int = 10, **env: str) -> None:
    job.out.mkdir(exist_ok=True)
    checkpoints = ("--checkpoint-dir", str(job.home / "kept"))
    args = (str(job.out), str(steps))
    job.start(*checkpoints, *options, script=SCRIPT, args=args, env={"PYTHONHASHSEED": "", **env})


def draws(job: FtJob) -> list[tuple[str, dict[str, str]]]:
    """What each start of a rank has drawn, with its rank."""
    lines = [line.split() for line in (job.out / "draws").read_text().splitlines()]
    return [(rank, dict(one.split("=") for one in drawn)) for _, rank, *drawn in lines]


def assert_one_draw_each(job: FtJob, starts: int) -> dict[str, dict[str, str]]:
    """Each of the ranks has begun so many times, and drawn the same each time; returns the draws by rank."""
    found: dict[str, dict[str, str]] = {}
    for rank, drawn in draws(job):
        assert found.setdefault(rank, drawn) == drawn, draws(job)
    assert len(draws(job)) == 2 * starts
    return found


@pytest.mark.long
@pytest.mark.parametrize("how", ["--warm", "--no-warm"])
def test_a_killed_rank_draws_the_same_again(job: FtJob, how: str) -> None:
    job.out.mkdir()
    (job.out / "die").touch()
    start(job, how)
    assert job.wait() == 0, job.stderr
    assert not (job.out / "die").exists(), "the kill was made"
    by_rank = assert_one_draw_each(job, starts=2)
    assert by_rank["0"]["set"] == by_rank["1"]["set"]
    for kind in ("random", "numpy", "torch"):
        assert by_rank["0"][kind] != by_rank["1"][kind], "ranks draw different numbers"
    job.assert_clean()


@pytest.mark.slow
def test_the_seed_is_found_again_where_only_the_checkpoints_are_left_and_drawn_anew_for_a_fresh_start(
    job: FtJob,
) -> None:
    start(job, steps=200, STEP_TIME="0.05")
    job.wait_step(5)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    shutil.rmtree(job.run_dir)
    assert not job.memory.exists()
    start(job, steps=10)
    assert job.wait() == 0, job.stderr
    assert [event["source"] for event in job.events("resumed")] == ["storage"]
    before = assert_one_draw_each(job, starts=2)
    assert "is not exact" not in job.log(0, 0)
    (job.out / "draws").unlink()
    start(job, "--fresh", steps=3)
    assert job.wait() == 0, job.stderr
    anew = assert_one_draw_each(job, starts=1)
    assert anew["0"]["set"] == before["0"]["set"]
    for kind in ("random", "numpy", "torch"):
        assert anew["0"][kind] != before["0"][kind]


@pytest.mark.slow
def test_another_hash_seed_than_the_one_that_saved_is_said(job: FtJob) -> None:
    start(job, steps=200, STEP_TIME="0.05")
    job.wait_step(5)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    start(job, steps=10, PYTHONHASHSEED="7")
    assert job.wait() == 0, job.stderr
    orders = {drawn["set"] for _, drawn in draws(job)}
    assert len(orders) == 2, "the user's PYTHONHASHSEED counts"
    assert "PYTHONHASHSEED was 0 when step" in job.log(0, 0)
    assert "now it is 7" in job.log(0, 0)
    job.assert_clean()
