"""Loops over job.epochs() and job.batches(): killed at any place of an epoch's body, they go on bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.harness import ATTACHED, JOBS, FtJob

SCRIPT = JOBS / "epochs.py"
FAST = ("--backoff-first", "0.05s", "--backoff-max", "0.1s", "--max-restarts", "20", "--storage-interval", "2")
# batches of an epoch: 6 on one rank, 3 on two
PLACES = (
    "batch:0:2:kill stepped:0:{last}:kill head:1:0:kill batch:1:0:kill tail:1:0:kill validation:2:0:storage"
    " late:2:0:kill batch:3:1:storage stepped:3:0:kill late:4:0:kill"
)


def _run(job: FtJob, out: Path, *words: str, faults: str = "", ranks: int = 1, options: tuple[str, ...] = ()) -> None:
    job.out = out
    job.start(
        *FAST,
        *options,
        *("--warm", "--preload", ATTACHED),
        script=SCRIPT,
        args=("--out", str(out), *words),
        env={"EPOCHS_FAULTS": faults},
        ranks=ranks,
    )


@pytest.mark.parametrize("place", ["stepped:1:2", "validation:2:0", "late:4:0"])
@pytest.mark.slow
def test_a_job_that_was_told_to_stop_goes_on_bit_for_bit(place: str, job: FtJob, tmp_path: Path) -> None:
    _run(job, tmp_path / "calm")
    assert job.wait() == 0, job.stderr
    job.job_id += "-broken"
    job.run_dir = tmp_path / "run_broken"
    _run(job, tmp_path / "broken", "--nap", "0.05", faults=f"{place}:term")
    ends = job.wait()
    if not place.startswith("late:4"):  # there the last step is complete before anything could be agreed
        assert ends == 75, job.stderr
        _run(job, tmp_path / "broken", faults=f"{place}:term")
        assert job.wait() == 0, job.stderr
    _compare(job, tmp_path / "calm", tmp_path / "broken", place)


@pytest.mark.slow
def test_another_job_goes_on_within_an_epoch(job: FtJob, tmp_path: Path) -> None:
    """What the head of the epoch's body has changed is in the checkpoint: it is not changed a second time.

    Taken out (`Job._undo_head`): another end.
    """
    _run(job, tmp_path / "calm", "--decay")
    assert job.wait() == 0, job.stderr
    first = tmp_path / "run_first"
    job.run_dir = first
    _run(job, tmp_path / "broken", "--decay", "--nap", "0.05", faults="stepped:1:2:term")
    assert job.wait() == 75, job.stderr
    job.job_id += "-other"
    job.run_dir = tmp_path / "run_other"
    _run(job, tmp_path / "broken", "--decay", options=("--load-checkpoint", str(first / "checkpoints")))
    assert job.wait() == 0, job.stderr
    assert job.events("loaded")[0]["step"] % 6, "within an epoch"
    _compare(job, tmp_path / "calm", tmp_path / "broken", "stepped:1:2:term")


@pytest.mark.slow
def test_a_job_that_has_ended_makes_no_epoch_more(job: FtJob, tmp_path: Path) -> None:
    _run(job, tmp_path / "first", "--epochs", "2")
    assert job.wait() == 0, job.stderr
    _run(job, tmp_path / "second", "--epochs", "2")
    assert job.wait() == 0, job.stderr
    assert not (tmp_path / "second" / "loss_0.csv").exists()
    job.out = tmp_path / "first"
    final = job.final()
    job.out = tmp_path / "second"
    assert job.final() == final
    _run(job, tmp_path / "third", "--epochs", "3")
    assert job.wait() == 0, job.stderr
    job.out = tmp_path / "third"
    assert sorted(job.losses()) == list(range(12, 18))


def _compare(job: FtJob, calm: Path, broken: Path, faults: str) -> None:
    job.out = calm
    losses, final = job.losses(), job.final()
    job.out = broken
    assert len(list(broken.glob("fired_*"))) == len(faults.split())
    assert job.losses() == losses
    assert job.final() == final


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        pytest.param((), 1, id="plain"),
        pytest.param((), 2, id="ranks", marks=pytest.mark.slow),
        pytest.param(("--workers", "2"), 1, id="workers", marks=pytest.mark.slow),
        pytest.param(("--workers", "2", "--persistent"), 1, id="persistent", marks=pytest.mark.slow),
        pytest.param(("--bare",), 1, id="bare", marks=pytest.mark.slow),
    ],
)
def test_a_kill_anywhere_in_an_epoch_changes_nothing(
    words: tuple[str, ...], ranks: int, job: FtJob, tmp_path: Path
) -> None:
    faults = PLACES.format(last=5 if ranks == 1 else 2)
    _run(job, tmp_path / "calm", *words, ranks=ranks)
    assert job.wait() == 0, job.stderr
    job.job_id += "-broken"
    job.run_dir = tmp_path / "run_broken"
    _run(job, tmp_path / "broken", *words, faults=faults, ranks=ranks)
    assert job.wait() == 0, job.stderr + job.journal_text
    _compare(job, tmp_path / "calm", tmp_path / "broken", faults)
