"""What cannot be kept is named, in the life that finds it and in the next one; what does not matter is not."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.loop_lives import DiedError, Life, LoopSurveyor, live_twice, step_done, steps
from tests.support.loops import Holder, reported_names
from torch import nn
from torch.utils.data import DataLoader

from ftlaunch_hooks.data.batch_sampler import ResumableBatchSampler

Capture = pytest.CaptureFixture[str]
LACKS = "this process lacks what an earlier attempt had in "
OTHERWISE = "differs from the same in an earlier attempt, and training never changed it"
starts = itertools.count()


def names_in(said: str, words: str) -> list[str]:
    """What the lines with these words name."""
    lines = [line.partition(": attach(")[0] for line in said.splitlines() if words in line]
    return sorted({name for line in lines for name in line.split("`")[1::2]})


def read() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def with_a_generator(life: Life) -> None:
    mine = Holder(batches=read(), kept=0)
    life.attach()
    for _ in steps(life):
        mine.kept += next(mine.batches)


def test_a_generator_in_an_attribute(tmp_path: Path, capfd: Capture) -> None:
    live_twice(with_a_generator, tmp_path)
    said = capfd.readouterr().err
    assert set(reported_names(said)) == {"mine.batches"}
    assert names_in(said, LACKS) == ["mine.batches"]
    assert "also kept: `mine.kept`" in said


def with_an_object_made_in_the_loop(life: Life) -> None:
    mine = Holder(helper=None, ready=False)
    life.attach()
    for step in steps(life):
        if mine.helper is None:
            mine.helper, mine.ready = Holder(count=0), True
        mine.helper.count += step


def test_an_object_that_is_made_in_the_loop_is_not_kept_by_halves(tmp_path: Path, capfd: Capture) -> None:
    """The flag stays as the second life has made it. Tried: it fails where `_half_made` finds nothing."""
    live_twice(with_an_object_made_in_the_loop, tmp_path)
    said = capfd.readouterr().err
    assert names_in(said, LACKS) == ["mine.helper", "mine.ready"]


def with_a_frozen_module(life: Life) -> None:
    teacher = nn.BatchNorm1d(3)
    life.attach(teacher=teacher)
    for _ in steps(life):
        teacher(torch.randn(4, 3))


def test_a_frozen_module_whose_buffers_move(tmp_path: Path, capfd: Capture) -> None:
    """Nothing of it is saved, as attach() was told. Tried: it fails without `visit_tensors`."""
    live_twice(with_a_frozen_module, tmp_path, frozen=["teacher"])
    said = capfd.readouterr().err
    assert set(reported_names(said)) == {"teacher"}
    assert names_in(said, LACKS) == ["teacher"]


def made_otherwise(life: Life) -> None:
    start = next(starts)
    split, table, weights = [start, 1, 2], {"a": start}, torch.full((3,), float(start))
    number, part, text = start, list(range(start, 9)), f"run {start}"
    dataset = torch.utils.data.TensorDataset(torch.full((3,), float(start)))
    mine = Holder(vocabulary={f"{start}": 0, "b": 1})
    life.attach()
    for _ in steps(life):
        str((split, table, weights, number, part, text, dataset, mine))


def test_what_the_script_has_made_otherwise(tmp_path: Path, capfd: Capture) -> None:
    """Numbers and texts may be those of the start: `begin = job.step`; a list that is shorter may be the rest."""
    live_twice(made_otherwise, tmp_path)
    said = capfd.readouterr().err
    assert names_in(said, OTHERWISE) == ["dataset", "mine.vocabulary", "split", "table", "weights"]
    assert reported_names(said) == []


def with_all_kinds(life: Life) -> None:
    mine = Holder(count=0, batches=read())
    data = [next(starts), 1]
    best = 0
    life.attach()
    for step in steps(life):
        mine.count += next(mine.batches) + len(data)
        best += step


def test_ignored_names_are_neither_kept_nor_said(tmp_path: Path, capfd: Capture) -> None:
    live_twice(with_all_kinds, tmp_path, ignore=["mine", "data", "best"])
    assert capfd.readouterr().err == ""


def with_things_that_do_not_matter(life: Life) -> None:
    began, spent, pid, total = time.time(), 0.0, os.getpid(), 0
    log = (life.directory.parent / "log").open("a")
    cache: dict[str, Any] = {}
    life.attach()
    for step in steps(life):
        now = time.time()
        spent, began = spent + now - began, now
        total += step
        loss = torch.randn(1)
        cache.setdefault("a", loss)
        log.write(f"{pid} {spent} {total}\n")
    log.close()


def test_times_processes_and_counts_raise_no_alarm(tmp_path: Path, capfd: Capture) -> None:
    live_twice(with_things_that_do_not_matter, tmp_path)
    said = capfd.readouterr().err
    assert "not exact" not in said
    assert names_in(said, "also kept")[-1] == "total"


def own_loop(life: Life) -> None:
    best, seen = 9.0, [0]
    split = [next(starts), 1]
    life.attach()
    for _ in range(life.step, 9):
        best = min(best, float(torch.randn(1)))
        seen.append(len(split))
        step_done(life)


def test_a_loop_of_the_scripts_own_is_told_in_both_lives(tmp_path: Path, capfd: Capture) -> None:
    """There is no moment before its first step at which something could be put back."""
    first = Life(tmp_path / "first", dies_at=5)
    with pytest.raises(DiedError):
        own_loop(first)
    said = capfd.readouterr().err
    assert reported_names(said) == ["best", "seen"]
    own_loop(Life(tmp_path / "second", first))
    said = capfd.readouterr().err
    assert reported_names(said) == ["best", "seen"]
    assert names_in(said, OTHERWISE) == ["split"]


def with_a_place_of_its_own(life: Life) -> None:
    """The second life begins its loop at another place."""
    best = 0
    life.attach()
    if life.before is None:
        for step in steps(life):
            best += step
    else:
        made = steps(life)
        while (step := next(made, None)) is not None:
            best += step
            if step == 6:
                life.survey.first_step_made(None, cannot_put_back=False)


def test_a_loop_at_another_place_is_told_that_nothing_was_put_back(tmp_path: Path, capfd: Capture) -> None:
    live_twice(with_a_place_of_its_own, tmp_path)
    assert names_in(capfd.readouterr().err, LACKS) == ["best"]


def test_at_most_six_names_a_line_and_what_feeds_training_first(capfd: Capture) -> None:
    def loop(boundary: Callable[[], None]) -> None:
        a = b = c = d = e = f = 0
        hidden, table = torch.zeros(2), [0]
        for step in range(2):
            boundary()
            a, b, c, d, e, f = a + 1, b + 1, c + 1, d + 1, e + 1, f + 1
            hidden = hidden + step + 1
            table.append(step)

    loop(LoopSurveyor({}).boundary)
    lines = [line.split("`")[1::2] for line in capfd.readouterr().err.splitlines()]
    assert lines == [["hidden", "table", "a", "b", "c", "d"], ["e", "f"]]


def test_a_cycle_over_what_is_attached_begins_anew(capfd: Capture) -> None:
    """It hands out again what it has read, and that is nowhere saved. Tried: it fails where `is_read_by` goes on."""
    sampler = ResumableBatchSampler(8, 4, rank=0, world_size=1, seed=1)
    loader = DataLoader(torch.arange(8), batch_sampler=sampler)

    def named(boundary: Callable[[], None]) -> None:
        batches = itertools.cycle(loader)
        for _ in range(3):
            boundary()
            next(batches)

    def zipped(boundary: Callable[[], None]) -> None:
        for _, _batch in zip(range(3), itertools.cycle(loader), strict=False):
            boundary()

    named(LoopSurveyor({"sampler": sampler}).boundary)
    zipped(LoopSurveyor({"sampler": sampler}).boundary)
    assert reported_names(capfd.readouterr().err) == ["batches", "itertools.cycle"]


def test_an_iterator_that_only_zip_holds(capfd: Capture) -> None:
    def loop(boundary: Callable[[], None]) -> None:
        batches = read()
        for _, _batch in zip(range(3), batches, strict=False):
            boundary()

    loop(LoopSurveyor({}).boundary)
    assert reported_names(capfd.readouterr().err) == ["batches"]
