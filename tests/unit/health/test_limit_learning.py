"""What `auto` learns, from what, and how it is kept."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.files import FilesInPlace

from ftlaunch.health import limits_file
from ftlaunch.health.hang_detection import waits
from ftlaunch.health.healthy_waits import HealthyWaits
from ftlaunch.health.limit_learning import LimitLearning
from ftlaunch.health.time_limits import AUTO_CEILING_SECONDS, BOUNDS, LEAST_FACTOR, TimeLimits, learned
from ftlaunch.ranks.view import RankView
from ftlaunch.spec.job_spec import JobSpec, LaunchSpec, SavingSpec

TRAIN = RankView(0, 0.0, True, True, "train", 1, 10.0, True, False)


@pytest.mark.parametrize(
    ("asked", "longest", "kind", "busy", "limit"),
    [
        ({}, {}, "train", False, 3600.0),  # nothing is known yet
        ({}, {"train": 1.0}, "train", False, 600.0),
        ({}, {"train": 1.0}, "train", True, 3600.0),
        ({}, {"train": 100.0}, "train", False, 1000.0),
        ({}, {"train": 500.0}, "train", False, 3600.0),
        ({}, {"train": 1000.0}, "train", False, 5000.0),  # a ceiling is not held against what was healthy
        ({}, {"eval": 60.0}, "eval", False, 3600.0),
        ({}, {"startup": 60.0}, "startup", False, 1800.0),
        ({}, {"startup": 600.0}, "startup", False, 3000.0),
        ({"train": 5.0}, {}, "eval", False, 5.0),
        ({"train": 3600.0}, {"eval": 20.0}, "eval", False, 3600.0),
        *[({"train": 3600.0}, {}, kind, False, 3600.0) for kind in BOUNDS],
        ({"train": 5.0, "startup": 60.0}, {}, "first step", False, 60.0),
        ({"train": 5.0, "startup": None}, {}, "first step", False, None),
        ({"train": 5.0}, {"train": 60.0}, "train", False, 5.0),  # what was asked for holds
        ({"train": 5.0}, {}, "train", True, 5.0),
        ({"train": 5.0, "eval": 7.0}, {}, "train", True, 7.0),
        ({"train": 5.0, "eval": 7.0}, {"eval": 20.0}, "eval", True, 7.0),
        ({"train": None}, {"eval": 20.0}, "eval", False, None),
        ({"train": None, "eval": 7.0}, {}, "eval", False, 7.0),
        ({"eval": None}, {}, "eval", False, None),
    ],
)
def test_limits(asked: Any, longest: dict[str, float], kind: str, busy: bool, limit: float | None) -> None:
    assert TimeLimits(asked, longest).of(kind, busy) == limit


@pytest.mark.parametrize("seed", range(20))
def test_never_below_five_times_the_longest_healthy_wait(seed: int) -> None:
    """Any sequence of waits, of any kind, however it was measured."""
    chance = random.Random(seed)
    longest: dict[str, float] = {}
    gaps, now, truth = HealthyWaits(longest), 10.0, dict.fromkeys(BOUNDS, 0.0)
    for attempt in range(3):
        gaps = HealthyWaits(gaps.longest)
        seen = TRAIN._replace(beat=now)
        gaps.learn(waits([seen]), 0.0)
        for _ in range(200):
            wait = 10 ** chance.uniform(-3, 5)
            kind = seen.phase
            truth[kind] = max(truth[kind], wait)
            now += wait
            seen = seen._replace(phase=chance.choice(["train", "eval", "checkpoint", "teardown"]), beat=now)
            gaps.learn(waits([seen]), 0.0)
        for kind, (floor, ceiling) in BOUNDS.items():
            assert longest.get(kind, 0.0) == pytest.approx(truth[kind]), attempt
            limit = TimeLimits({}, longest).of(kind)
            assert limit is not None
            assert limit >= LEAST_FACTOR * truth[kind] * (1 - 1e-9)
            assert limit >= floor
            assert limit <= max(ceiling, LEAST_FACTOR * truth[kind] * (1 + 1e-9), AUTO_CEILING_SECONDS)


def test_learned_grows_with_what_was_seen() -> None:
    limits = [learned(seconds, 600.0, 3600.0) for seconds in range(1, 2000)]
    assert limits == sorted(limits)


def look(gaps: HealthyWaits, *views: RankView, awake: float = 0.0) -> dict[str, float]:
    gaps.learn(waits(views), awake)
    return gaps.longest


def test_a_wait_counts_for_what_was_being_done() -> None:
    gaps = HealthyWaits({})
    look(gaps, TRAIN._replace(beat=10))
    look(gaps, TRAIN._replace(beat=12, phase="eval"))
    assert look(gaps, TRAIN._replace(beat=52)) == {"train": 2.0, "eval": 40.0}
    assert look(gaps, TRAIN._replace(beat=53)) == {"train": 2.0, "eval": 40.0}


def test_what_has_not_ended_well_teaches_nothing() -> None:
    gaps = HealthyWaits({})
    look(gaps, TRAIN._replace(beat=10))
    gaps = HealthyWaits(gaps.longest)  # it hung, and was killed
    assert look(gaps, TRAIN._replace(started=500, beat=510)) == {}


def test_a_supervisor_that_was_held_up_learns_nothing() -> None:
    gaps = HealthyWaits({})
    look(gaps, TRAIN._replace(beat=10))
    assert look(gaps, TRAIN._replace(beat=500), awake=490.0) == {}
    assert look(gaps, TRAIN._replace(beat=501), awake=490.0) == {"train": 1.0}


def test_the_way_to_the_first_step_and_the_end() -> None:
    gaps = HealthyWaits({})
    bare = RankView(0, 0.0, False, False, "startup", -1, 0.0, False, False)
    look(gaps, bare)
    attached = TRAIN._replace(beat=20, first_step_done=False)
    look(gaps, attached)
    look(gaps, TRAIN._replace(beat=50))
    look(gaps, TRAIN._replace(beat=51, phase="teardown"))
    assert look(gaps, TRAIN._replace(beat=51, phase="teardown", exited=True, ended=60)) == {
        "startup": 20.0, "first step": 30.0, "train": 1.0, "teardown": 9.0,
    }  # fmt: skip
    assert look(gaps, TRAIN._replace(beat=51, phase="teardown", exited=True, ended=60)) == gaps.longest


def test_the_last_to_end() -> None:
    gaps = HealthyWaits({})
    done = TRAIN._replace(beat=10, phase="teardown", exited=True, ended=12)
    other = TRAIN._replace(rank=1, beat=11, phase="teardown")
    look(gaps, done._replace(exited=False, ended=0), other)
    look(gaps, done, other)
    assert look(gaps, done, other._replace(exited=True, ended=40)) == {"teardown": 29.0, "exit": 28.0}


# --- kept in the run dir -----------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert limits_file.read(tmp_path, "job") == {}
    limits_file.write(tmp_path, "job", {"train": 1.25, "first step": 40.0})
    assert limits_file.read(tmp_path, "job") == {"train": 1.25, "first step": 40.0}


GOOD = {"version": 1, "job_id": "job", "longest": {"train": 1.0}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[" * 60000,
        b"[]",
        json.dumps(GOOD).encode()[:-3],
        b" " * 65536 + json.dumps(GOOD).encode(),
        *(
            json.dumps({**GOOD, **wrong}).encode()
            for wrong in (
                {"version": 2}, {"job_id": "other"}, {"longest": []}, {"longest": {"train": "1"}},
                {"longest": {"train": True}}, {"longest": {"train": -1}}, {"longest": {"train": 1e9}},
                {"longest": {"train": 10**400}}, {"longest": {"train": float("nan")}}, {"longest": {"lunch": 1.0}},
            )
        ),
    ],
)  # fmt: skip
def test_what_is_damaged_or_of_another_job_is_not_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / limits_file.LIMITS).write_bytes(content)
    with pytest.raises(limits_file.NotOurs):
        limits_file.read(tmp_path, "job")


def learning(run_dir: Path, said: list[str], *, fresh: bool = False) -> LimitLearning:
    launch = LaunchSpec("script", "train.py", (), nproc=1, run_id="job")
    spec = JobSpec("job", run_dir, run_dir, run_dir, launch, saving=SavingSpec(fresh=fresh))
    return LimitLearning(spec, FilesInPlace(), said.append)


def test_it_is_noted_once_a_minute_where_it_is_worth_it(tmp_path: Path) -> None:
    said: list[str] = []
    job, found = learning(tmp_path, said), []
    seen = job.of_attempt()
    for now, beat in ((0, 0), (1, 10), (62, 20), (70, 60), (123, 61), (190, 102), (251, 103)):
        job.learn(seen, waits([TRAIN._replace(beat=float(beat))]), 0.0, float(now))
        found.append(limits_file.read(tmp_path, "job").get("train"))
    assert found == [None, None, 10.0, 10.0, 40.0, 40.0, 40.0], "41 is not worth it"
    job.note()
    assert limits_file.read(tmp_path, "job") == {"train": 41.0}
    assert job.limits.longest == {"train": 41.0}
    assert said == []
    assert learning(tmp_path, said).limits.longest == {"train": 41.0}
    assert learning(tmp_path, said, fresh=True).limits.longest == {}


def test_a_run_dir_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    job = learning(tmp_path / "gone", said)
    seen = job.of_attempt()
    job.learn(seen, waits([TRAIN._replace(beat=1.0)]), 0.0, 0.0)
    job.learn(seen, waits([TRAIN._replace(beat=9.0)]), 0.0, 1.0)
    job.note()
    job.note()
    assert said == [f"cannot write {tmp_path / 'gone' / 'limits.json'}: No such file or directory"]
