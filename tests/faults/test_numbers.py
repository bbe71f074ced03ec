"""Losses that are no numbers, spikes, and replicas that differ: said, stopped, or gone back from; the data skipped."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.harness import JOBS, FtJob

from ftlaunch.checkpoints.catalog import CatalogEntry, listed
from ftlaunch_contract.checkpoint import skipped_samples
from ftlaunch_contract.checkpoint.layout import TRACKER

UNSOUND = JOBS / "unsound.py"
QUICK = ("--backoff-first", "0.1s", "--backoff-max", "0.2s", "--storage-interval", "5")
POISONED = ("--poison", "90")  # of 2 ranks with 4 samples each, not shuffled: step 12, rank 0
ALONE = ("--poison", "45")  # of one rank: step 12


def run(job: FtJob, fault: str, *options: str, args: tuple[str, ...] = (), ranks: int = 2) -> int:
    """The exit code of a job in which `fault` happens; it did happen."""
    job.start(*QUICK, *options, script=UNSOUND, args=("--out", str(job.out), *args), ranks=ranks)
    code = job.wait()
    assert any(line.startswith(fault) for line in job.fired()), job.stderr
    return code


def made(job: FtJob) -> dict[int, list[int]]:
    """Step -> the samples of all ranks, as it was made last."""
    steps: dict[int, list[int]] = {}
    attempts = sorted({int(path.name.split("_")[1]) for path in job.out.glob("seen_*")})
    for attempt in attempts:
        this: dict[int, list[int]] = {}
        for path in sorted(job.out.glob(f"seen_{attempt}_*")):
            for line in path.read_text().splitlines():
                step, *samples = map(int, line.split())
                this.setdefault(step, []).extend(samples)
        steps |= this
    return steps


def samples(job: FtJob) -> list[int]:
    steps = made(job)
    assert sorted(steps) == list(range(1, len(steps) + 1))
    return [sample for step in sorted(steps) for sample in steps[step]]


def unsound(job: FtJob) -> list[dict[str, Any]]:
    return job.events("unsound")


def marks(job: FtJob) -> dict[int, str | None]:
    """Step -> how its checkpoint is marked."""
    return {entry.step: entry.health for entry in checkpoints(job)}


def checkpoints(job: FtJob) -> list[CatalogEntry]:
    return [entry for entry in listed(job.run_dir / "checkpoints") if entry.state == "complete"]


# --- a loss that is no number ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_nan_is_said_once_and_marks_what_follows(job: FtJob) -> None:
    assert run(job, "nan 0", args=POISONED) == 0, job.stderr
    (event,) = unsound(job)
    assert (event["kind"], event["act"], event["rank"], event["step"]) == ("nan", "warn", 0, 12)
    assert job.stderr.count("rank 0: the loss of step 12 is nan; going on (on_nan: warn)") == 1
    assert marks(job)[24] == "abnormal"
    assert job.stderr.count("is marked abnormal: rank 0: the loss was nan at step 12") == 1
    assert {status for step, status in marks(job).items() if step < 12} == {"normal"}, marks(job)
    assert samples(job) == list(range(24 * 8))
    job.assert_clean()


@pytest.mark.long
def test_no_loss_is_missed_however_short_the_steps(job: FtJob) -> None:
    """The supervisor looks ten times a second; the NaN is told once in hundreds of steps."""
    words = ("--steps", "400", "--step-time", "0", "--told-nan", "150")
    assert run(job, "told", "--storage-interval", "off", args=words, ranks=1) == 0, job.stderr
    (event,) = unsound(job)
    assert (event["kind"], event["step"]) == ("nan", 150)
    assert marks(job)[400] == "normal", "its losses and parameters had long been numbers again"


@pytest.mark.long
def test_stop_ends_the_job_and_saves_nothing_bad(job: FtJob) -> None:
    saved = job.run_dir / "checkpoints" / TRACKER
    assert run(job, "nan 0", "--on-nan", "stop", args=(*ALONE, "--saved", str(saved)), ranks=1) == 1
    assert "rank 0: the loss of step 12 is nan; not restarting (on_nan: stop)" in job.stderr
    assert job.events("incident")[-1]["kind"] == "numerical"
    assert len(job.events("attempt_started")) == 1
    assert max(marks(job)) < 12, "what is in memory is not salvaged"
    job.assert_clean()


@pytest.mark.long
def test_rollback_goes_on_without_the_samples(job: FtJob) -> None:
    """Without the skipping the same NaN comes again until the budget is used up."""
    assert run(job, "nan 0", "--on-nan", "rollback", args=POISONED) == 0, job.stderr
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"], incident["restarts_left"]) == ("numerical", 0, 2)
    assert "without the samples of the bad steps; restarting now, 2 of 3 restarts left" in incident["sentence"]
    (back,) = job.events("rolled_back")
    assert back["skipped"] == [88, 96]
    assert f"going back to step {back['step']}, without samples 88 to 95" in job.stderr
    assert 5 <= back["step"] < 12, "under load a step is saved a step or two later than every fifth"
    assert job.events("resumed")[-1]["step"] == back["step"]
    assert job.events("resumed")[-1]["source"] == "storage"
    assert skipped_samples.read(job.run_dir / "checkpoints") == [(88, 96)]
    assert samples(job) == [*range(88), *range(96, 25 * 8)]
    assert marks(job)[24] == "normal"
    job.assert_clean()


@pytest.mark.slow
def test_rollback_where_the_script_raises_over_it(job: FtJob) -> None:
    """Without telling at once it is an ordinary failure: resumed from memory, and the same again."""
    assert run(job, "nan 0", "--on-nan", "rollback", args=(*ALONE, "--raise"), ranks=1) == 0, job.stderr
    assert [incident["kind"] for incident in job.events("incident")] == ["numerical"]
    assert len(job.events("rolled_back")) == 1
    assert samples(job) == [*range(44), *range(48, 25 * 4)]


@pytest.mark.slow
def test_rollback_with_the_samples_gives_up_in_the_end(job: FtJob) -> None:
    options = ("--on-nan", "rollback", "--no-skip-bad-data", "--max-restarts", "1")
    assert run(job, "nan 0", *options, args=ALONE, ranks=1) == 1
    assert len(job.events("rolled_back")) == 1
    assert "1 of 1 restarts are used up" in job.stderr


@pytest.mark.slow
def test_rollback_before_any_checkpoint_begins_anew(job: FtJob) -> None:
    assert run(job, "nan 0", "--on-nan", "rollback", args=("--poison", "8"), ranks=1) == 0, job.stderr
    (back,) = job.events("rolled_back")
    assert back["step"] is None
    assert "going back to the beginning: there was no checkpoint yet" in job.stderr
    assert samples(job) == [*range(8), *range(12, 25 * 4)]


@pytest.mark.slow
def test_an_abnormal_checkpoint_is_not_gone_back_to(job: FtJob) -> None:
    """A first run leaves an abnormal checkpoint of step 20; the next goes on from it, and goes back to 10."""
    assert run(job, "nan 0", "--keep", "1", args=(*ALONE, "--steps", "20"), ranks=1) == 0, job.stderr
    before = marks(job)
    assert before[20] == "abnormal"
    healthy = max(step for step, status in before.items() if status == "normal")
    assert 5 <= healthy < 12, "retention keeps the newest healthy one besides the newest"
    job.start(*QUICK, "--on-nan", "rollback", script=UNSOUND, args=("--out", str(job.out), *ALONE), ranks=1)
    code = job.wait()
    assert job.events("rolled_back")[0]["step"] == healthy
    assert code == 0, job.stderr
    assert job.events("resumed")[1]["step"] == 20
    assert (job.run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "24\n"


# --- spikes ---------------------------------------------------------------------------------------------------

HIGH = ("--high", "120", "136", "--steps", "48", "--step-time", "0.03")  # steps 31 to 34


@pytest.mark.parametrize(
    "act", [pytest.param("warn", marks=pytest.mark.slow), pytest.param("rollback", marks=pytest.mark.long)]
)
def test_a_spike(job: FtJob, act: str) -> None:
    assert run(job, "high", "--on-spike", act, args=HIGH, ranks=1) == 0, job.stderr
    event = unsound(job)[0]
    assert (event["kind"], event["act"], event["step"]) == ("spike", act, 31)
    if act == "warn":
        assert len(unsound(job)) == 1
        assert samples(job) == list(range(48 * 4))
    else:
        assert skipped_samples.read(job.run_dir / "checkpoints") == [(120, 132)], "three in a row were needed"
        assert samples(job) == [*range(120), *range(132, 51 * 4)]


@pytest.mark.slow
def test_spikes_are_not_looked_for_unless_asked(job: FtJob) -> None:
    assert run(job, "high", args=HIGH, ranks=1) == 0, job.stderr
    assert unsound(job) == []


# --- replicas -------------------------------------------------------------------------------------------------

FLIPPED = ("--flip", "1", "8", "--steps", "60", "--step-time", "0.02")


@pytest.mark.long
@pytest.mark.parametrize("act", [pytest.param("warn", marks=pytest.mark.slow), "rollback"])
def test_a_flipped_bit(job: FtJob, act: str) -> None:
    options = ("--compare-replicas", "1", "--on-divergence", act)
    assert run(job, "flip 1", *options, args=FLIPPED, ranks=3) == 0, job.stderr
    event = unsound(job)[0]
    assert (event["kind"], event["act"], event["rank"]) == ("divergence", act, 1)
    assert event["part"] == "model.2.weight"
    assert 8 <= event["step"] < 8 + 20, "each of the parts had its turn"
    assert f"rank 1 of 3 held another model.2.weight than the others after step {event['step']}" in job.stderr
    if act == "warn":
        assert marks(job)[60] == "abnormal"
        assert len(unsound(job)) == 1
    else:
        back = job.events("rolled_back")[0]["step"]
        assert back is None or back < 8
        assert marks(job)[60] == "normal"
        assert len(unsound(job)) == 1, job.journal_text
    job.assert_clean()


@pytest.mark.slow
def test_replicas_that_are_equal_are_not_complained_of(job: FtJob) -> None:
    """Running statistics differ between the ranks, for they see other samples; they are no replicas."""
    job.start(
        *QUICK, "--compare-replicas", "1", script=UNSOUND, ranks=3,
        args=("--out", str(job.out), "--steps", "60", "--step-time", "0"),
    )  # fmt: skip
    assert job.wait() == 0, job.stderr
    assert unsound(job) == []
    assert marks(job)[60] == "normal"
