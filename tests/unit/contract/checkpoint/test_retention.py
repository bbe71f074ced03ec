"""What goes from a checkpoint directory, and what stays whatever happens."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.support.checkpoints import assert_whole, commit, empty

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.checkpoint.retention import Candidate, clear_unfinished, make_room, not_fitting, retire
from ftlaunch_contract.files import checksums


@pytest.fixture
def tmp_path(memory: Path) -> Path:
    """Nothing here depends on a disk."""
    return memory


def steps(root: Path) -> list[int]:
    return [step for step, _ in layout.list_iterations(root / "checkpoints")]


@pytest.mark.parametrize(
    ("keep", "keep_every", "left"),
    [
        (1, 0, [60]),
        (2, 0, [60, 50]),
        (2, 20, [60, 50, 40, 20]),
        (1, 25, [60, 50]),
        (9, 0, [60, 50, 40, 30, 20, 10]),
        (1, 7, [60]),
        (0, 0, [60]),
    ],
)
def test_the_newest_and_every_kth_stay(tmp_path: Path, keep: int, keep_every: int, left: list[int]) -> None:
    for step in (10, 20, 30, 40, 50, 60):
        commit(tmp_path, step)
    gone = [step for step, note in retire(tmp_path / "checkpoints", keep, keep_every) if note is None]
    assert steps(tmp_path) == left
    assert sorted([*gone, *left]) == [10, 20, 30, 40, 50, 60]
    for _, directory in layout.list_iterations(tmp_path / "checkpoints"):
        assert_whole(directory)


def test_what_is_not_complete_does_not_count(tmp_path: Path) -> None:
    """A directory with a higher number and nothing in it must not cost the newest complete checkpoint."""
    for step in (10, 20):
        commit(tmp_path, step)
    checkpoints = tmp_path / "checkpoints"
    empty(checkpoints, 99)
    next(commit(tmp_path, 50).glob("*-opt-*")).unlink()
    assert list(retire(checkpoints, 1)) == [(10, None)]
    assert steps(tmp_path) == [99, 50, 20]


def test_the_one_just_committed_stays_below_newer_ones(tmp_path: Path) -> None:
    """Storage has steps 80 and 90, which could not be read when the job resumed; it has gone on and made step 30."""
    for step in (20, 30, 80, 90):
        commit(tmp_path, step)
    assert [step for step, _ in retire(tmp_path / "checkpoints", 1, spare=30)] == [80, 20]
    assert steps(tmp_path) == [90, 30]


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps say what is newer: neither what a checkpoint says of its time, nor its files' times."""
    real, days = time.gmtime, {10: 40_000, 20: 0, 30: 10_000, 40: 100}
    for step, day in days.items():
        monkeypatch.setattr(time, "gmtime", lambda day=day: real(86_400 * day))
        for path in commit(tmp_path, step).iterdir():
            os.utime(path, (86_400 * day, 86_400 * day))
    checkpoints = tmp_path / "checkpoints"
    created = [
        json.loads((path / "common.json").read_bytes())["created"] for _, path in layout.list_iterations(checkpoints)
    ]
    assert created == ["1970-04-11T00:00:00Z", "1997-05-19T00:00:00Z", "1970-01-01T00:00:00Z", "2079-07-08T00:00:00Z"]
    assert verify.newest_verified(checkpoints) == (40, [])
    assert [step for step, _ in retire(checkpoints, 2)] == [20, 10]


def test_nothing_of_others_is_touched(tmp_path: Path) -> None:
    for step in (10, 20):
        commit(tmp_path, step)
    checkpoints = tmp_path / "checkpoints"
    old = checkpoints / "iteration_0000010"
    (old / "exported.safetensors").write_text("mine")
    (old / "part_one.json").write_text("mine")
    (old / "net-model-0000000-0000002.safetensors.bak").write_text("mine")
    (checkpoints / "best.safetensors").write_text("mine")
    (checkpoints / "iteration_0000005").symlink_to(old)
    [(step, note)] = retire(checkpoints, 1)
    assert step == 10
    assert note is not None
    assert "exported.safetensors, net-model-0000000-0000002.safetensors.bak, part_one.json in it is not ours" in note
    assert len(list(layout.incomplete_dir(checkpoints, 10).iterdir())) == 3
    assert (checkpoints / "best.safetensors").read_text() == "mine"
    assert (checkpoints / "iteration_0000005").is_symlink()
    assert clear_unfinished(checkpoints)[0][0] == 10
    assert len(list(layout.incomplete_dir(checkpoints, 10).iterdir())) == 3


def test_what_an_interrupted_save_left_is_cleared(tmp_path: Path) -> None:
    commit(tmp_path, 10)
    checkpoints = tmp_path / "checkpoints"
    left = commit(tmp_path, 20)
    left.rename(layout.incomplete_dir(checkpoints, 20))
    (layout.incomplete_dir(checkpoints, 20) / "part_0000000.json").write_text("{")
    (checkpoints / f"{layout.TRACKER}.tmp").write_text("2")
    assert clear_unfinished(checkpoints) == [(20, None)]
    assert sorted(os.listdir(checkpoints)) == ["iteration_0000010", layout.TRACKER]
    assert clear_unfinished(checkpoints) == []
    assert clear_unfinished(tmp_path / "nowhere") == []


def digests(checkpoints: Path) -> dict[int, str]:
    """What a store says that has all checkpoints of a directory."""
    return {
        step: checksums.of_blocks(checksums.of_bytes((path / layout.METADATA).read_bytes()))
        for step, path in layout.list_iterations(checkpoints)
    }


class TestRoom:
    """What is deleted so that the checkpoints beside a store fit."""

    @pytest.mark.parametrize(
        ("max_size", "needed", "left"),
        [
            (5, set(), [50, 40, 30, 20, 10]),
            (3, set(), [50, 40, 30]),
            (1, set(), [50]),
            (0, set(), [50]),
            (2, {20}, [50, 20]),
            (3, {20}, [50, 40, 20]),
            (1, {10, 30}, [50, 30, 10]),
            (2, {99}, [50, 40]),
        ],
    )
    def test_the_newest_that_fit_stay_beside_those_that_are_needed(
        self, max_size: int, needed: set[int], left: list[int]
    ) -> None:
        steps = [50, 40, 30, 20, 10]
        candidates = [Candidate(step, is_healthy=True, ends=()) for step in steps]
        gone = not_fitting(candidates, dict.fromkeys(steps, 1), max_size=max_size, needed=needed)
        assert sorted([*gone, *left], reverse=True) == steps
        assert [step for step in steps if step not in gone] == left

    def test_the_newest_healthy_one_and_ends_of_earlier_trainings_stay(self) -> None:
        candidates = [
            Candidate(50, is_healthy=False, ends=(20,)),
            Candidate(40, is_healthy=False, ends=()),
            Candidate(30, is_healthy=True, ends=(10,)),
            Candidate(20, is_healthy=True, ends=()),
            Candidate(10, is_healthy=True, ends=()),
        ]
        sizes = {candidate.step: 1 for candidate in candidates}
        assert not_fitting(candidates, sizes, max_size=1, needed=set()) == [40]

    def test_what_the_store_lacks_is_never_deleted(self, tmp_path: Path) -> None:
        for step in (10, 20, 30, 40):
            commit(tmp_path, step)
        checkpoints = tmp_path / "checkpoints"
        stored = digests(checkpoints)
        stored[20] = stored[10]  # the store has another checkpoint of this step
        gone = list(make_room(checkpoints, 1, stored=stored, spare=40))
        assert gone == [(30, None), (10, None)]
        assert steps(tmp_path) == [40, 20]
        for _, directory in layout.list_iterations(checkpoints):
            assert_whole(directory)

    def test_nothing_is_deleted_that_fits(self, tmp_path: Path) -> None:
        for step in (10, 20):
            commit(tmp_path, step)
        checkpoints = tmp_path / "checkpoints"
        size = sum(verify.size_of(path) for _, path in layout.list_iterations(checkpoints))
        stored = digests(checkpoints)
        assert not list(make_room(checkpoints, size, stored=stored, spare=20))
        assert list(make_room(checkpoints, size - 1, stored=stored, spare=20)) == [(10, None)]
