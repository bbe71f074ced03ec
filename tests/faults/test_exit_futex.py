"""A rank begins to die; the others leave while the kernel still takes it apart: see exit_futex.py."""

from __future__ import annotations

import signal

import pytest
from tests.support.harness import JOBS, FtJob

SCRIPT = JOBS / "exit_futex.py"


def start(job: FtJob, *roles: str, options: tuple[str, ...] = ()) -> int:
    job.start("--no-warm", "--backoff-first", "0.1s", *options, script=SCRIPT, args=roles, ranks=len(roles))
    return job.wait()


def happened(job: FtJob) -> list[str]:
    return (job.home / "events").read_text().splitlines()


@pytest.mark.long
def test_the_others_leave_meanwhile(job: FtJob) -> None:
    """Taken out: without `ask_to_leave` in `Attempt.on_dying` rank 0 is there for as long as the dying one."""
    assert start(job, "leaves", "heavy", "leaves") == 0, job.stderr
    assert "killed 1" in happened(job)
    dying = job.events("rank_dying")[0]
    assert (dying["rank"], dying["signal"]) == (1, "SIGKILL")
    ends = [(event["rank"], event["code"]) for event in job.events("rank_exited")][:3]
    assert sorted(ends) == [(0, -signal.SIGTERM), (1, -signal.SIGKILL), (2, -signal.SIGTERM)], ends
    assert ends[0][0] != 1, "on a busy machine one of the others may take as long as the dying one"
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("killed", 1), "not one of those that left because of it"
    dead = next(event for event in job.events("rank_exited") if event["rank"] == 1)
    assert incident["mono"] > dead["mono"], "judged once its exit status is there"
    job.assert_clean()


@pytest.mark.long
def test_a_rank_hears_one_sigterm(job: FtJob) -> None:
    """Taken out: without Rank.asked the second comes when the end is judged."""
    assert start(job, "counts", "heavy") == 0, job.stderr
    assert [event["rank"] for event in job.events("rank_dying")] == [1]
    assert happened(job).count("term 0") == 1
    assert job.events("incident")[0]["rank"] == 1


@pytest.mark.long
def test_a_rank_that_is_replaced_alone_disturbs_nobody(job: FtJob) -> None:
    assert start(job, "counts", "heavy", options=("--restart-scope", "rank")) == 0, job.stderr
    assert job.events("rank_dying")[0]["rank"] == 1
    assert "term 0" not in happened(job)


@pytest.mark.long
@pytest.mark.parametrize("role", ["exec", "thread", "fork"])
def test_what_is_no_death(job: FtJob, role: str) -> None:
    """Taken out: a rank that becomes another program is taken for dying without the look in `Leader.ended_by`."""
    assert start(job, role, role) == 0, job.stderr
    assert happened(job).count("done 0") == happened(job).count("done 1") == 1
    assert len(job.events("attempt_started")) == 1
    assert not job.events("rank_dying")
    job.assert_clean()
