"""What a job begins with: the tracker file, a checkpoint by path or by step, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.checkpoints import checkpoint, flip_a_bit, steps

from ftlaunch_contract.checkpoint import initial, layout
from ftlaunch_contract.checkpoint.fresh_start import Command
from ftlaunch_contract.checkpoint.initial import CannotLoad, InitialCheckpoint
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.standalone import resume_choice


class Start:
    """A start without a supervisor, as far as choosing goes."""

    def __init__(self, own: Path) -> None:
        self.own, self.said = own, list[str]()

    def choose(
        self, path: Path | None = None, *, weights_only: bool = False, fresh: bool = False
    ) -> tuple[Resume, int]:
        self.said.clear()
        load = None if path is None else InitialCheckpoint(path, weights_only)
        command = Command("script", "train.py", (), load=str(path or ""))
        return resume_choice.choose(self.own, load, command, fresh, self.said.append)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path / "own")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another job's checkpoints."""
    for step in (10, 20, 30):
        checkpoint(tmp_path / "other", step)
    return tmp_path / "other"


# --- the tracker file -------------------------------------------------------------------------------------

TRACKERS: dict[str, Callable[[Path], object]] = {
    "missing": lambda tracker: tracker.unlink(),
    "empty": lambda tracker: tracker.write_text(""),
    "stale": lambda tracker: tracker.write_text("10\n"),
    "torn": lambda tracker: tracker.write_bytes(b"\0\0\xff1"),
    "points to nothing": lambda tracker: tracker.write_text("77\n"),
    "not a number": lambda tracker: tracker.write_text("release\n"),
    "huge": lambda tracker: tracker.write_text("9" * 5000),
    "a directory": lambda tracker: (tracker.unlink(), tracker.mkdir()),
}


@pytest.mark.parametrize("kind", TRACKERS)
def test_no_tracker_file_prevents_a_resume(kind: str, tmp_path: Path, start: Start) -> None:
    """A job's own newest checkpoint counts, whatever the file says."""
    for step in (10, 20, 30):
        checkpoint(start.own, step)
    TRACKERS[kind](start.own / layout.TRACKER)
    assert start.choose() == (Resume.STORAGE, 30)
    assert start.said == []


@pytest.mark.parametrize("kind", TRACKERS)
def test_in_a_folder_to_load_the_tracked_one_counts_if_it_is_there(kind: str, other: Path, start: Start) -> None:
    TRACKERS[kind](other / layout.TRACKER)
    assert start.choose(other) == (Resume.LOADED, 10 if kind == "stale" else 30)


def test_a_tracked_one_that_is_damaged_gives_way_to_the_newest(other: Path, start: Start) -> None:
    (other / layout.TRACKER).write_text("20\n")
    flip_a_bit(layout.iteration_dir(other, 20))
    assert start.choose(other) == (Resume.LOADED, 30)
    assert "checkpoint of step 20 refused" in start.said[0]
    assert steps(other) == [30, 20, 10], "it is not ours: nothing is moved"


# --- of another job ---------------------------------------------------------------------------------------


def test_one_of_another_job_is_for_the_first_start(other: Path, start: Start) -> None:
    path = layout.iteration_dir(other, 20)
    assert start.choose(path) == (Resume.LOADED, 20)
    assert start.said == [f"going on from step 20 in {path}"]
    assert start.choose(path, weights_only=True) == (Resume.WEIGHTS, 20)
    assert start.said == [f"taking the weights of step 20 from {path}; the job begins at step 0"]
    checkpoint(start.own, 5)  # an older step than the other job's, but this job's own
    for weights_only in (False, True):
        assert start.choose(path, weights_only=weights_only) == (Resume.STORAGE, 5)
        assert "is for the job's first start, and it has its own step 5" in start.said[0]
    with pytest.raises(CannotLoad):
        start.choose(other / "nowhere", fresh=True)
    assert steps(start.own) == [5]
    assert start.choose(path, fresh=True) == (Resume.LOADED, 20)
    assert steps(start.own) == []


def test_a_checkpoint_under_another_name_is_loaded(other: Path, start: Start) -> None:
    renamed = layout.iteration_dir(other, 20).rename(other / "base-model")
    assert start.choose(renamed) == (Resume.LOADED, 20)
    assert initial.checkpoint_at(renamed, 20) == renamed


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "nowhere: there is no such file or directory"),
        ("iteration_0000040", "iteration_0000040: there is no such file or directory"),
        ("empty", "empty: there is no checkpoint in it"),
        ("a-file", "a-file: there is no checkpoint in it that this version knows"),
        ("damaged", "damaged: it is not a usable checkpoint, nor does it hold one"),
    ],
)
def test_what_cannot_be_loaded_is_an_error(path: str, words: str, other: Path, start: Start) -> None:
    (other / "empty").mkdir()
    (other / "a-file").touch()
    flip_a_bit(layout.iteration_dir(other, 10).rename(other / "damaged"))
    with pytest.raises(CannotLoad, match=f"^cannot load .*{words}"):
        start.choose(other / path)
    assert not start.own.exists()


# --- of its own -------------------------------------------------------------------------------------------


def test_going_back_is_done_once(start: Start) -> None:
    for step in (10, 20, 30):
        checkpoint(start.own, step)
    back = layout.iteration_dir(start.own, 20)
    assert start.choose(back) == (Resume.STORAGE, 20)
    assert start.said[0].startswith("going back to step 20; later checkpoints are now in ")
    [aside] = start.own.glob("superseded-*")
    assert steps(aside) == [30]
    assert layout.read_tracker(start.own) == 20
    checkpoint(start.own, 25)  # the same command, after a preemption
    assert start.choose(back) == (Resume.STORAGE, 25)
    assert start.said[0].startswith("this job went back to step 20 before")
    assert start.choose(back, fresh=True) == (Resume.STORAGE, 20)
    checkpoint(start.own, 26)
    assert start.choose() == (Resume.STORAGE, 26)
    assert start.choose(back) == (Resume.STORAGE, 20), "a start without it in between: it is meant anew"


def test_the_way_back_can_be_interrupted_anywhere(start: Start) -> None:
    """Killed before the note is written: the next start does the rest."""
    for step in (10, 20, 30, 40):
        checkpoint(start.own, step)
    layout.iteration_dir(start.own, 40).rename(start.own / "gone")  # as far as the last try came
    assert start.choose(layout.iteration_dir(start.own, 10)) == (Resume.STORAGE, 10)
    assert steps(start.own) == [10]


def test_back_to_nothing_or_to_something_damaged_changes_nothing(start: Start) -> None:
    for step in (10, 20):
        checkpoint(start.own, step)
    with pytest.raises(CannotLoad, match=r"cannot load step 15: .* has no such checkpoint; it has 20, 10"):
        start.choose(layout.iteration_dir(start.own, 15))
    flip_a_bit(layout.iteration_dir(start.own, 10))
    with pytest.raises(CannotLoad, match=r"cannot load step 10: net-model.* does not match its checksum; nothing was"):
        start.choose(layout.iteration_dir(start.own, 10))
    assert steps(start.own) == [20, 10]
    assert start.choose() == (Resume.STORAGE, 20)


def test_the_whole_directory_of_its_own_is_the_ordinary_resume(start: Start) -> None:
    """What a platform gives that restarts a job by itself: nothing at first, then the newest."""
    assert start.choose(start.own) == (Resume.FRESH, 0)
    for step in (10, 20):
        checkpoint(start.own, step)
    assert start.choose(start.own) == (Resume.STORAGE, 20)
    assert start.said == []


def test_weights_of_its_own_would_mix_two_runs(start: Start) -> None:
    for path in (start.own, layout.iteration_dir(start.own, 10)):
        with pytest.raises(CannotLoad, match="give another checkpoint directory"):
            start.choose(path, weights_only=True)
