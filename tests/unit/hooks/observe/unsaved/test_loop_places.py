"""What a loop takes its passes from is told of where it begins anew after a resume, not where it knows its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.support.loop_lives import LoopSurveyor
from tests.support.loops import reported_names
from torch.utils.data import DataLoader

from ftlaunch_hooks.data.batch_sampler import ResumableBatchSampler
from ftlaunch_hooks.job.job import Job

BLIND = "the script's own loop does not ask for job.step"

Boundary = Callable[[], None]
Loop = Callable[[Boundary, Any], None]


def batches() -> Iterator[int]:
    yield from itertools.count()


def cycle(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class Reader:
    """An object of the script's."""

    def batches(self) -> Iterator[int]:
        return batches()

    def all(self) -> Iterator[int]:
        yield from batches()

    def __iter__(self) -> Iterator[int]:
        return batches()


@pytest.fixture
def job() -> Job:
    """What a script asks for its step."""
    job = object.__new__(Job)
    job.step = 0
    return job


@pytest.fixture
def placed(job: Job, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[str], bool]]:
    """Names of which a loop is told, and whether it is told that it does not ask for its step."""

    def run(loop: Loop, *, own: bool = True, **objects: Any) -> tuple[list[str], bool]:
        loop(LoopSurveyor(objects, own=own).boundary, job)
        said = capfd.readouterr().err
        assert said.count(BLIND) <= 1
        return reported_names(said), BLIND in said

    return run


def zipped(boundary: Boundary, job: Any) -> None:
    for _, batch in zip(range(3), batches(), strict=False):
        boundary()
        str(batch)


def of_a_method(boundary: Boundary, job: Any) -> None:
    reader = Reader()
    for _, batch in zip(range(3), reader.all(), strict=False):
        boundary()
        str(batch)


def of_an_object(boundary: Boundary, job: Any) -> None:
    reader = Reader()
    for number in enumerate(reader):
        boundary()
        if number[0] == 2:
            break


def of_a_list(boundary: Boundary, job: Any) -> None:
    data = [1, 2, 3]
    for one in data:
        boundary()
        str(one)


@pytest.mark.parametrize(
    ("loop", "names"),
    [(zipped, ["batches"]), (of_a_method, ["reader.all"]), (of_an_object, ["reader"]), (of_a_list, ["data"])],
)
def test_sources_that_begin_anew(placed: Any, loop: Loop, names: list[str]) -> None:
    """Tried: each fails where `_is_restarted` leaves out its kind."""
    assert placed(loop) == (names, False)
    assert placed(loop, own=False) == (names, False)


def blind(boundary: Boundary, job: Any) -> None:
    for _ in range(3):
        boundary()


def endless(boundary: Boundary, job: Any) -> None:
    for number in itertools.count():
        boundary()
        if number == 2:
            break


def asks_at_the_top(boundary: Boundary, job: Any) -> None:
    for _ in range(job.step, 3):
        boundary()


def asks_within(boundary: Boundary, job: Any) -> None:
    for number in range(3):
        if number < job.step:
            continue
        boundary()


def asks_outside(boundary: Boundary, job: Any) -> None:
    def epoch() -> None:
        for _ in range(2):
            boundary()

    for _ in range(job.step, 2):
        epoch()


def takes_the_rest(boundary: Boundary, job: Any) -> None:
    data = [1, 2, 3]
    for one in data[job.step :]:
        boundary()
        str(one)


@pytest.mark.parametrize("loop", [blind, endless])
def test_a_loop_of_its_own_that_does_not_ask_is_told_so_once(placed: Any, loop: Loop) -> None:
    """One over steps() need not ask."""
    assert placed(loop) == ([], True)
    assert placed(loop, own=False) == ([], False)


@pytest.mark.parametrize("loop", [asks_at_the_top, asks_within, asks_outside, takes_the_rest])
def test_one_that_asks_is_not(placed: Any, loop: Loop) -> None:
    """Tried: it fails where `asks_for_step` looks at one function alone, and where `lost_sources` does not ask."""
    assert placed(loop) == ([], False)


def test_what_is_attached_knows_its_place(placed: Any) -> None:
    """Also behind a generator, or an object, of the script's. Tried: it fails without `_is_position`."""
    sampler = ResumableBatchSampler(64, 4, rank=0, world_size=1, seed=1, endless=True)
    loader = DataLoader(torch.arange(64), batch_sampler=sampler)

    class Wrapped:
        def __init__(self) -> None:
            self.loader = loader

        def __iter__(self) -> Iterator[Any]:
            return iter(self.loader)

    def directly(boundary: Boundary, job: Any) -> None:
        for _, batch in zip(range(3), loader, strict=False):
            boundary()
            str(batch)

    def generated(boundary: Boundary, job: Any) -> None:
        for _, batch in zip(range(3), cycle(loader), strict=False):
            boundary()
            str(batch)

    def read() -> Iterator[Any]:
        yield from loader

    def enclosed(boundary: Boundary, job: Any) -> None:
        for _, batch in zip(range(3), read(), strict=False):
            boundary()
            str(batch)

    def wrapped(boundary: Boundary, job: Any) -> None:
        data = Wrapped()
        for _, batch in zip(range(3), data, strict=False):
            boundary()
            str(batch)

    for loop in (directly, generated, enclosed, wrapped):
        assert placed(loop, sampler=sampler) == ([], False)
