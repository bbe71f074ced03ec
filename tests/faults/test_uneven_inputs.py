"""Ranks whose loops are of different lengths (Join): none waits on a page for one that has left its loop."""

from __future__ import annotations

import pytest
from tests.support.harness import JOBS, FtJob

UNEVEN = JOBS / "uneven.py"


def run(job: FtJob, steps: tuple[int, int], *options: str, **env: str) -> None:
    args = (str(job.out), *map(str, steps))
    job.start(*options, script=UNEVEN, args=args, env={"GLOO_SOCKET_IFNAME": "lo", **env})
    assert job.wait() == 0, job.stderr


@pytest.mark.parametrize(
    "steps", [pytest.param((90, 6), marks=pytest.mark.slow), pytest.param((6, 90), marks=pytest.mark.slow)]
)
def test_the_others_go_on_and_a_restart_goes_back_to_what_all_have(
    job: FtJob, tmp_path_factory: pytest.TempPathFactory, steps: tuple[int, int]
) -> None:
    """The longer rank is killed after the other has left; bit for bit as in a run that nothing happens to.

    90 steps: the ring of orders is full after 64. Taken out: without PeerProgress.left_before() the job stands still.
    """
    longer = steps.index(90)
    calm = FtJob(tmp_path_factory.mktemp("calm"))
    run(calm, steps)
    assert calm.events("incident") == []
    calm.assert_clean()
    run(job, steps, FAULT=f"{longer} 9")
    assert job.fired() == [f"FAULT {longer} 9"]
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("killed", longer)
    assert [event["step"] for event in job.events("resumed")] == [0, 6]
    assert job.events("resumed")[1]["source"] == "memory"
    assert f"rank {1 - longer} has left its loop before step 7" in job.log(0, longer)
    assert [job.losses(rank) for rank in (0, 1)] == [calm.losses(rank) for rank in (0, 1)]
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.long
def test_the_rank_that_sleeps_is_blamed(job: FtJob) -> None:
    """Not the one that has made fewer steps because it has fewer: `front` in laggard()."""
    run(job, (20, 6), "--hang-timeout", "1s", "--teardown-timeout", "3s", SLEEP="0 12")
    assert job.fired() == ["SLEEP 0 12"]
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 0)
    job.assert_clean()
