"""Checkpoints of other programs under the names that ours have: nothing moves, deletes, counts or resumes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.checkpoints import checkpoint, content_of, empty, mindspore, steps

from ftlaunch_contract.checkpoint import foreign, initial, layout, retention, verify, writer
from ftlaunch_contract.checkpoint.foreign import ForeignCheckpoints
from ftlaunch_contract.checkpoint.initial import CannotLoad
from ftlaunch_contract.checkpoint.ownership import Custody
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.standalone import resume_choice

THEIRS = "belongs to another program (MindSpore Transformers' Checkpoint 2.0)"


def notes(directory: Path, step: int) -> Path:
    """Put a folder with a person's notes in the place of a checkpoint."""
    path = layout.iteration_dir(directory, step)
    path.mkdir(parents=True)
    (path / "notes").write_text("mine")
    return path


def file(directory: Path, step: int) -> Path:
    path = layout.iteration_dir(directory, step)
    path.write_text("mine")
    return path


def link(directory: Path, step: int) -> Path:
    path = layout.iteration_dir(directory, step)
    checkpoint(directory / "elsewhere", step).rename(directory / "old")
    path.symlink_to(directory / "old")
    return path


def bare(directory: Path, step: int) -> Path:
    path = layout.iteration_dir(directory, step)
    path.mkdir(parents=True)
    return path


Make = Callable[[Path, int], Path]
MADE = {"MindSpore": mindspore, "notes": notes, "a file": file, "a link": link, "nothing": bare}


@pytest.fixture(params=MADE)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with our steps 2, 4 and 6, and somebody else's step 5."""
    for step in (2, 4, 6):
        checkpoint(tmp_path / "ck", step)
    MADE[request.param](tmp_path / "ck", 5)
    return tmp_path / "ck"


def test_it_is_no_checkpoint_of_ours(shared: Path) -> None:
    assert steps(shared) == [6, 4, 2]
    assert layout.list_foreign(shared) == [(5, layout.iteration_dir(shared, 5))]


def test_a_resume_passes_it_over_and_moves_nothing(shared: Path) -> None:
    shutil.rmtree(layout.iteration_dir(shared, 6))
    before = content_of(shared)
    assert verify.newest_verified(shared) == (4, [])
    assert content_of(shared) == before
    said: list[str] = []
    assert resume_choice.choose_beside(4, shared, said.append) == (Resume.MEMORY, 4)
    assert said == []


def test_a_fresh_start_and_going_back_leave_it_alone(shared: Path) -> None:
    place = layout.iteration_dir(shared, 5)
    theirs = content_of(place)
    aside = layout.supersede(shared, above=4)
    assert aside is not None and [path.name for path in aside.iterdir()] == ["iteration_0000006"]
    assert layout.supersede(shared) is not None
    assert steps(shared) == []
    assert place.exists() and content_of(place) == theirs


def test_retention_neither_counts_nor_deletes_it(shared: Path) -> None:
    assert list(retention.retire(shared, 2)) == [(2, None)]
    assert list(retention.retire(shared, 1)) == [(4, None)]
    assert layout.iteration_dir(shared, 5).exists()


def test_nothing_is_written_over_it(shared: Path) -> None:
    place = layout.iteration_dir(shared, 5)
    theirs = content_of(place)
    with pytest.raises(FileExistsError, match="iteration_0000005 "):
        checkpoint(shared, 5)
    assert place.exists() and content_of(place) == theirs
    assert not (shared / layout.QUARANTINE).exists()
    assert layout.list_incomplete(shared) == []


def test_what_comes_while_a_checkpoint_is_written_stays_too(tmp_path: Path) -> None:
    """Between the first byte and the commit."""
    target = writer.SaveTarget(tmp_path, 5, "interval", "net", 1)
    writer.prepare(target)
    writer.write_shard(target, 0, {}, b'{"step": 5, "consumed_samples": 0, "versions": {}, "state": {}}')
    theirs = content_of(mindspore(tmp_path, 5))
    with pytest.raises(FileExistsError, match="MindSpore"):
        writer.commit(target)
    assert content_of(layout.iteration_dir(tmp_path, 5)) == theirs


@pytest.mark.parametrize("make", [mindspore, notes], ids=["MindSpore", "notes"])
def test_a_job_does_not_begin_there(make: Make, tmp_path: Path) -> None:
    """Whatever the number: a job may be set back to any step, and reach any."""
    checkpoint(tmp_path, 9)
    make(tmp_path, 3)
    before = content_of(tmp_path)
    with pytest.raises(ForeignCheckpoints, match=r"iteration_0000003 .*nothing was changed"):
        Custody(tmp_path, lambda pid: None, print)
    assert content_of(tmp_path) == before


def test_what_is_ours_and_damaged_or_half_written_is_ours(tmp_path: Path) -> None:
    """Refused and quarantined, or cleared, as ever: the mark is the first that is written."""
    checkpoint(tmp_path, 1)
    (checkpoint(tmp_path, 2) / layout.METADATA).write_bytes(b"")
    empty(tmp_path, 3)
    writer.prepare(writer.SaveTarget(tmp_path, 4, "interval", "net", 1))
    assert [path.name for path in layout.incomplete_dir(tmp_path, 4).iterdir()] == [layout.MARK]
    foreign.refuse_directory(tmp_path)
    assert retention.clear_unfinished(tmp_path) == [(4, None)]
    step, refusals = verify.newest_verified(tmp_path)
    assert (step, [refusal.step for refusal in refusals]) == (1, [3, 2])
    assert {path.name for path in (tmp_path / layout.QUARANTINE).iterdir() if path.is_dir()} == {
        "iteration_0000002", "iteration_0000003",
    }  # fmt: skip


def test_a_copy_without_the_mark_is_ours(tmp_path: Path) -> None:
    (checkpoint(tmp_path, 2) / layout.MARK).unlink()
    foreign.refuse_directory(tmp_path)
    assert verify.newest_verified(tmp_path) == (2, [])


# --- the tracker file -------------------------------------------------------------------------------------


def megatron(directory: Path) -> None:
    (directory / "iter_0000200").mkdir()
    (directory / layout.TRACKER).write_text("200")


THEIR_TRACKERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "Megatron-LM": (megatron, "Megatron-LM's layout"),
    "release": (lambda place: (place / layout.TRACKER).write_text("release"), "no checkpoint of ftlaunch is beside it"),
    "number": (lambda place: (place / layout.TRACKER).write_text("7"), "no checkpoint of ftlaunch is beside it"),
}


@pytest.mark.parametrize("kind", THEIR_TRACKERS)
def test_anothers_tracker_is_refused_and_not_overwritten(kind: str, tmp_path: Path) -> None:
    make, words = THEIR_TRACKERS[kind]
    make(tmp_path)
    with pytest.raises(ForeignCheckpoints, match=f"{layout.TRACKER} belongs to another program .*{words}"):
        foreign.refuse_directory(tmp_path)
    theirs = (tmp_path / layout.TRACKER).read_bytes()
    checkpoint(tmp_path, 300)  # as a writer of torch.distributed.checkpoint's does, which refuses no directory
    assert (tmp_path / layout.TRACKER).read_bytes() == theirs
    assert steps(tmp_path) == [300]


def test_our_tracker_is_ours_also_when_its_checkpoint_is_gone(tmp_path: Path) -> None:
    shutil.rmtree(checkpoint(tmp_path, 5))
    foreign.refuse_directory(tmp_path)
    checkpoint(tmp_path, 7)
    (tmp_path / layout.TRACKER).write_text("7")  # by hand
    foreign.refuse_directory(tmp_path)
    checkpoint(tmp_path, 9)
    assert layout.read_tracker(tmp_path) == 9


def test_a_tracker_that_names_anothers_checkpoint_stays(tmp_path: Path) -> None:
    """MindSpore Transformers begins to write there while a job runs."""
    checkpoint(tmp_path, 5)
    mindspore(tmp_path, 6)
    checkpoint(tmp_path, 7)
    assert (tmp_path / layout.TRACKER).read_text() == "6"


# --- to be loaded -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [True, False], ids=["one", "a folder of some"])
def test_no_job_goes_on_from_it_and_what_can_be_taken_is_said(one: bool, tmp_path: Path) -> None:
    path = mindspore(tmp_path / "theirs", 8)
    place = path if one else path.parent
    with pytest.raises(CannotLoad) as refusal:
        initial.check(initial.asked(place, weights_only=False))
    assert str(refusal.value) == (
        f"cannot go on from {place}: it is a checkpoint of MindSpore Transformers (Checkpoint 2.0), of which only the"
        " weights can be taken; --no-resume-training does, and the job begins at step 0"
    )
    initial.check(initial.asked(place, weights_only=True))


def test_of_a_folder_the_tracked_one_is_taken_whatever_comes_later(tmp_path: Path) -> None:
    """All ranks are told the number: the other program may go on saving while they look."""
    old, new = mindspore(tmp_path, 8), mindspore(tmp_path, 12)
    (tmp_path / layout.TRACKER).write_text("8")
    step, refusals = initial.find(tmp_path)
    assert (step, refusals) == (8, [])
    (tmp_path / layout.TRACKER).write_text("12")
    assert initial.foreign_at(tmp_path, step) == (8, old)
    assert initial.foreign_at(tmp_path) == (12, new)
    assert initial.find(old)[0] == 0
    assert initial.foreign_at(old, 0) == (0, old)


def test_without_a_tracker_file_none_of_several_is_guessed(tmp_path: Path) -> None:
    """It is the last thing that they write: of what it does not name nobody knows whether it is whole."""
    path = mindspore(tmp_path, 8)
    (tmp_path / layout.TRACKER).unlink()
    with pytest.raises(CannotLoad) as refusal:
        initial.check(initial.asked(tmp_path, weights_only=True))
    assert str(refusal.value) == (
        f"cannot load {tmp_path}: {path} {THEIRS}, and {layout.TRACKER} names none that is there; give one of them"
    )


def test_what_nobody_knows_has_no_mark(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match=r"cannot load .*iteration_0000008: .* has no mark of ftlaunch"):
        initial.check(initial.asked(notes(tmp_path, 8), weights_only=False))
