"""What happens while the interpreter of a rank ends: crashes of libraries, and process groups that a script leaves."""

from __future__ import annotations

import sys

import pytest
from tests.support.harness import JOBS, FtJob

ENDS = JOBS / "ends.py"
can_end_groups = pytest.mark.skipif(
    (3, 12, 0) <= sys.version_info[:3] < (3, 12, 3),
    reason="Python 3.12.0 to 3.12.2 start no thread once the interpreter ends (CPython gh-113964): use another",
)


def run(job: FtJob, how: str, end: str, *options: str, at: int = 1) -> None:
    """Run the job to its end, which must be a success."""
    job.start("--grace", "1s", *options, script=ENDS, args=(str(job.out), how), env={"END": end, "AT": str(at)})
    assert job.wait() == 0, f"{job.stderr}\n{job.journal_text}"


def codes(job: FtJob, rank: int = 1) -> list[int]:
    """How a rank has ended in each attempt."""
    return [event["code"] for event in job.events("rank_exited") if event["rank"] == rank]


def trained(job: FtJob) -> list[int]:
    """How often each rank has made the whole training."""
    return [len((job.out / f"trained_{rank}").read_text().splitlines()) for rank in (0, 1)]


@pytest.mark.long
def test_ranks_that_end_well_while_a_hang_is_examined_are_done(job: FtJob) -> None:
    """Taken out (`_judge_end_meanwhile`): an incident, and the job, which has done its work, is started once more."""
    run(job, "attached", "late", "--hang-timeout", "1s", "--teardown-timeout", "1s")
    assert len(job.events("hang_seen")) == 1
    assert job.events("incident") == []
    assert trained(job) == [1, 1]
    job.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "start", "end", "signal", "code"),
    [
        ("attached", "--warm", "abort", "SIGABRT", -6),
        ("observed", "--warm", "abort", "SIGABRT", -6),
        ("observed", "--no-warm", "abort", "SIGABRT", -6),
        ("observed", "--warm", "abort-0", "SIGABRT", -6),
        ("attached", "--no-warm", "segv", "SIGSEGV", -11),
    ],
)
def test_a_crash_behind_the_scripts_end_is_a_warning(
    job: FtJob, how: str, start: str, end: str, signal: str, code: int
) -> None:
    """Taken out (`ENDED_WELL` in `Rank.code`): an incident, and a script without attach() trains once more.

    Taken out (`ended_well` in `note_dying`): the other rank is told to leave. `abort-0` without `exits_with`: an
    incident.
    """
    run(job, how, end, start)
    assert codes(job) == [code]
    assert codes(job, 0) == [0]
    assert job.events("incident") == job.events("rank_dying") == []
    assert trained(job) == [1, 1]
    warning = f"warning: {signal} has ended rank 1 after its script had ended well: that counts as exit code 0"
    assert job.stderr.count(warning) == 1
    assert [(event["rank"], event["signal"]) for event in job.events("rank_crashed_at_end")] == [(1, signal)]
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "start", "end"),
    [
        ("observed", "--warm", "abort-3"),
        pytest.param("attached", "--no-warm", "abort-3", marks=pytest.mark.slow),
        ("attached", "--warm", "early"),
        pytest.param("observed", "--no-warm", "early", marks=pytest.mark.slow),
        # a plain Python does not say with which code it exits
        pytest.param("observed", "--no-warm", "abort-0", marks=pytest.mark.slow),
    ],
)
def test_a_crash_before_a_good_end_is_an_incident(job: FtJob, how: str, start: str, end: str) -> None:
    """Taken out (the question for the code, then for `is_finalizing`): no incident after exit code 3, or in atexit."""
    run(job, how, end, start, "--backoff-first", "0s")
    assert codes(job) == [-6, 0]
    (incident,) = job.events("incident")
    assert incident["rank"] == 1
    assert "rank 1 crashed with SIGABRT" in incident["sentence"]
    assert job.events("rank_crashed_at_end") == []
    job.assert_clean()


@pytest.mark.long
@can_end_groups
@pytest.mark.parametrize(("how", "start"), [("attached", "--warm"), ("observed", "--no-warm")])
def test_a_process_group_that_is_left_is_ended_first(job: FtJob, how: str, start: str) -> None:
    """Taken out (`destroy_process_group`): gloo's threads live while Python takes the main module apart."""
    run(job, how, "left", start)
    for rank in (0, 1):
        threads = (job.out / f"threads_{rank}").read_text()
        assert threads
        assert "gloo" not in threads
    assert job.events("incident") == []
    job.assert_clean()


@pytest.mark.long
@can_end_groups
@pytest.mark.parametrize("start", ["--warm", "--no-warm"])
def test_a_collective_that_nobody_joins_holds_no_end_up(job: FtJob, start: str) -> None:
    """The other rank waits for the end of this one. Taken out (`join` without a limit): neither ends."""
    run(job, "observed", "pending", start, at=0)
    assert "do not end within 3 s: they are left" in job.log(0, 0)
    assert job.events("incident") == []
    job.assert_clean()


@can_end_groups
@pytest.mark.long
def test_a_peer_that_has_gone_holds_no_end_up(job: FtJob) -> None:
    run(job, "observed", "gone", at=0)
    assert codes(job, 0) == codes(job, 1) == [0]
    assert "gloo" not in (job.out / "threads_0").read_text()
    assert job.events("incident") == []
    job.assert_clean()
