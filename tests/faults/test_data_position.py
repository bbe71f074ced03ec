"""After any crash, stop or change of the number of ranks every sample comes once an epoch, and nothing else changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.support.harness import JOBS, FtJob

SCRIPT = JOBS / "data.py"


@dataclass(frozen=True)
class Step:
    """One step as the ranks of one attempt have made it."""

    losses: list[str]  # rank by rank
    samples: list[int]


@pytest.fixture
def other_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FtJob]:
    """One that is left undisturbed."""
    job = FtJob(tmp_path_factory.mktemp("undisturbed"))
    yield job
    job.dispose()


def history(job: FtJob) -> dict[int, Step]:
    """Step -> how it was made last; what an attempt began and not all of its ranks completed is not there."""
    made: dict[int, Step] = {}
    lives = sorted({path.name.split("_")[1] for path in job.out.glob("seen_*")}, key=lambda life: life.split("."))
    for life in lives:
        ranks = []
        for path in sorted(job.out.glob(f"seen_{life}_*")):
            lines = [line.split() for line in path.read_text().splitlines()]
            ranks.append({int(step): (loss, list(map(int, samples))) for step, loss, *samples in lines})
        for step in sorted(set.intersection(*map(set, ranks))):
            losses = [rank[step][0] for rank in ranks]
            made[step] = Step(losses, list(itertools.chain(*(rank[step][1] for rank in ranks))))
    assert sorted(made) == list(range(len(made)))
    return made


def epochs(made: dict[int, Step], length: int) -> list[list[int]]:
    samples = list(itertools.chain(*(made[step].samples for step in sorted(made))))
    return [sorted(samples[at : at + length]) for at in range(0, len(samples) - length + 1, length)]


def start(job: FtJob, *more: str, ranks: int, fault: str = "", life: int = 0) -> None:
    env = {"LIFE": str(life)} | ({"FAULT": fault} if fault else {})
    args = ("--out", str(job.out), *more)
    job.start("--storage-interval", "off", script=SCRIPT, args=args, ranks=ranks, env=env)


def crash_stop_and_change_ranks(job: FtJob, *more: str) -> dict[int, Step]:
    """Two ranks, one is killed; SIGTERM; one rank, its supervisor is killed; three ranks to the end."""
    words = ("--steps", "60", "--step-time", "0.03", *more)
    start(job, *words, ranks=2, fault="sigkill 1 7")
    job.wait_step(12)
    assert job.fired() == ["7"]
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    stopped = job.events("job_stopped")[-1]["step"]

    start(job, *words, ranks=1, life=1)
    job.wait_step(stopped + 8)
    job.supervisor.kill()
    job.supervisor.wait()

    start(job, *words, ranks=3, life=2)
    assert job.wait() == 0, job.stderr
    resumed = [(event["source"], event["step"]) for event in job.events("resumed") if event["source"]]
    assert resumed[:2] == [("memory", 7), ("storage", stopped)]
    assert resumed[2][0] == "storage", "three ranks cannot take up the snapshots of one: they were saved first"
    assert resumed[2][1] >= stopped + 8
    job.assert_clean()
    made = history(job)
    assert [len(made[step].losses) for step in (0, stopped, 59)] == [2, 1, 3]
    return made


@pytest.mark.slow
def test_every_sample_once_an_epoch_on_two_ranks_then_one_then_three(job: FtJob) -> None:
    whole = epochs(crash_stop_and_change_ranks(job), 101)
    assert len(whole) >= 2
    assert whole == [list(range(101))] * len(whole)


@pytest.mark.slow
def test_a_mix_on_two_ranks_then_one_then_three(job: FtJob) -> None:
    made = crash_stop_and_change_ranks(job, "--by", "mix", "--length", "60")
    samples = list(itertools.chain(*(made[step].samples for step in sorted(made))))
    for share, length, part in ((2, 60, [0, 2]), (1, 20, [1])):
        mine = [sample for at, sample in enumerate(samples) if at % 3 in part]  # the cycle of [2, 1] is 0, 1, 0
        assert len(mine) == len(samples) * share // 3
        assert len(mine) >= 2 * length
        for at in range(0, len(mine) - length + 1, length):
            assert sorted(mine[at : at + length]) == list(range(length))


@pytest.mark.slow
def test_torchdata_goes_on_where_it_was(job: FtJob, other_job: FtJob) -> None:
    """One rank, killed; with a worker that has read ahead, and whose random numbers torchdata does not save."""
    words = ("--by", "torchdata", "--length", "20")
    start(other_job, *words, ranks=1)
    assert other_job.wait() == 0, other_job.stderr
    start(job, *words, ranks=1, fault="sigkill 0 12")
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["12"]
    assert "torchdata saves no random numbers of the workers of `loader`" in job.log(1, 0)
    made = history(job)
    assert made == history(other_job)
    for begin in range(0, 28, 7):
        epoch = list(itertools.chain(*(made[step].samples for step in range(begin, begin + 7))))
        assert sorted(epoch) == list(range(20))
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["sampler", "mix", "torchdata"])
def test_two_ranks_crashed_and_stopped_see_and_lose_nothing_else(job: FtJob, other_job: FtJob, by: str) -> None:
    """Step 12 is in the middle of torchdata's second epoch; each of its two workers has read ahead then."""
    words = ("--by", by, "--length", "50", "--step-time", "0.02", "--workers", "2")
    start(other_job, *words, ranks=2)
    assert other_job.wait() == 0, other_job.stderr
    start(job, *words, ranks=2, fault="sigkill 1 12")
    job.wait_step(16)
    assert job.fired() == ["12"]
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    if by == "torchdata":
        job.start("--max-restarts", "0", script=SCRIPT, args=("--out", str(job.out), *words), ranks=1)
        assert job.wait() == 1
        assert "cannot restore `loader`: it was saved by 2 ranks, now there are 1" in job.stderr
    start(job, *words, ranks=2, life=1)
    assert job.wait() == 0, job.stderr
    assert history(job) == history(other_job)
    job.assert_clean()
