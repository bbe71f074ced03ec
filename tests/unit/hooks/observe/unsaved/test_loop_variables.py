"""What a training loop keeps in variables of the script's is told of once; what is saved, or made anew, is not."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.support.loops import Holder
from tests.support.snapshots import net

from ftlaunch_hooks.data.batch_sampler import ResumableBatchSampler


def test_what_a_loop_keeps(told: Any) -> None:
    def loop(boundary: Callable[[], None]) -> None:
        hidden, best, bad = torch.zeros(2), 9.0, 0
        history, buffer, table, array = [], deque([0], 1), {"a": torch.zeros(2)}, np.zeros(3)
        mine, loose, unused = Holder(count=0, kept=1), SimpleNamespace(rate=1.0), 0
        for step in range(3):
            boundary()
            hidden = hidden + step
            best = min(best, step)
            bad = bad + 1 if best > 100 else bad
            history.append(step)
            buffer.append(step)
            table["a"].add_(1)
            array += 1
            mine.count += 1
            loose.rate /= 2
            unused = step

            str(unused)

    names = ["array", "best", "buffer", "hidden", "history", "loose.rate", "mine.count", "table"]
    assert told(loop, {}) == names


def test_what_training_is_made_of(told: Any) -> None:
    """Schedulers, scalers, modules that are written through `.data`, and iterators."""
    model, average = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", enabled=True)

    def loop(boundary: Callable[[], None]) -> None:
        batches, mine, other, scale = iter([1, 2, 3, 4, 5]), average, scheduler, scaler
        for _ in range(4):
            boundary()
            next(batches)
            other.step()
            scale._growth_tracker = (scale._growth_tracker or 0) + 1
            for parameter in mine.parameters():
                parameter.data.mul_(0.5)

    attached = {"model": model, "optimizer": optimizer}
    assert told(loop, attached) == ["batches", "loop.average", "loop.scaler", "loop.scheduler"]
    more = {**attached, "average": average, "scheduler": scheduler, "scaler": scaler}
    assert told(loop, more) == ["batches"]


def test_what_is_saved_and_what_begins_anew_by_right(told: Any, tmp_path: Path) -> None:
    """Tried: it fails without each of the exceptions, and where temporaries count."""
    model, carried = net(), Holder(hidden=torch.zeros(2), deep=[Holder(count=0)])
    sampler = ResumableBatchSampler(64, 4, rank=0, world_size=1, seed=1, endless=True)
    loader = torch.utils.data.DataLoader(torch.arange(64), batch_sampler=sampler)

    def again(one: Any) -> Any:
        return one

    def cycle() -> Iterator[Any]:
        while True:
            yield from loader

    def loop(boundary: Callable[[], None]) -> None:
        weight, inner, batches = model[0].weight, carried.deep[0], cycle()
        log = (tmp_path / "log").open("a")
        hidden, began, pair = carried.hidden, time.time(), [carried.hidden] * 2
        for step in range(3):
            boundary()
            batch = next(batches)
            with torch.no_grad():
                weight.add_(1)
            hidden.add_(1)
            inner.count += 1
            log.write("a line")
            batches = again(batches)
            hidden, pair = carried.hidden, [*pair[1:], carried.hidden]
            total = 0
            for one in range(3):
                total += one + step
            spent, began = time.time() - began, time.time()
            assert spent is not None
            assert batch is not None
        log.close()

    assert told(loop, {"model": model, "carried": carried, "sampler": sampler}) == []


def test_a_loop_of_a_library_is_passed_by(told: Any) -> None:
    """Between the script and us there may be a progress bar."""

    def steps(boundary: Callable[[], None]) -> Iterator[int]:
        for step in range(3):
            boundary()
            yield step

    library = compile("def bar(inner):\n    for one in inner:\n        yield one\n", torch.__file__, "exec")
    namespace: dict[str, Any] = {}
    exec(library, namespace)

    def loop(boundary: Callable[[], None]) -> None:
        worst = 0
        for step in namespace["bar"](steps(boundary)):
            worst = max(worst, step)

    assert told(loop, {}) == ["worst"]


def test_all_functions_in_whose_loops_the_steps_are_made(told: Any) -> None:
    """What the outer one passes on is another object for each call. Tried: it fails where ids do not count."""

    def epoch(boundary: Callable[[], None], number: int, data: list[int]) -> int:
        total = 0
        for one in data:
            make_step(boundary)
            total += one + number
        return total

    def make_step(boundary: Callable[[], None]) -> None:
        boundary()

    def loop(boundary: Callable[[], None]) -> None:
        best, seen = 0, []
        for number in range(3):
            result = epoch(boundary, number, [number, 1, 2])
            best = max(best, result)
            seen.append(result)

    assert told(loop, {}) == ["best", "data", "seen", "total"]


def test_what_a_step_has_made_lives_no_longer(told: Any) -> None:
    """Before Python 3.13 a frame keeps a copy of its variables. Tried: it fails where `_values` leaves it."""
    ended: list[int] = []

    class Batch:
        def __del__(self) -> None:
            ended.append(1)

    def loop(boundary: Callable[[], None]) -> None:
        for step in range(3):
            boundary()
            batch = Batch()
            boundary()
            del batch
            assert len(ended) == step + 1

    told(loop, {})


SCRIPT = """
kept = []
for step in range(3):
    boundary()
    kept = [*kept, step]
left.update(kept=kept)
"""


def test_variables_that_are_no_copies_are_left_alone(told: Any) -> None:
    """A script in exec() has variables that are neither a function's nor its module's, and so has the body of a class.

    Tried: it fails where `_forget` takes all dicts for copies.
    """
    left: dict[str, Any] = {}

    def loop(boundary: Callable[[], None]) -> None:
        exec(compile(SCRIPT, "script.py", "exec"), {"boundary": boundary, "left": left}, {})

        class Body:
            kept: tuple[int, ...] = ()
            for step in range(3):
                boundary()
                kept = (*kept, step)

        assert Body.kept == (0, 1, 2)

    told(loop, {})
    assert left == {"kept": [0, 1, 2]}


def test_a_dict_of_locals_that_the_script_holds_keeps_its_numbers(told: Any) -> None:
    def loop(boundary: Callable[[], None]) -> None:
        best = 9
        held = locals()
        for step in range(3):
            boundary()
            best = min(best, step)
        assert held["best"] in (9, 0)

    told(loop, {})


def test_a_file_that_is_read(told: Any, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("1\n2\n3\n")

    def loop(boundary: Callable[[], None]) -> None:
        with (tmp_path / "data").open() as lines:
            for _ in range(3):
                boundary()
                next(lines)

    assert told(loop, {}) == ["lines"]


def test_iterators_that_were_made_before(told: Any) -> None:
    """Of a DataLoader over what is attached, over batches of the script's, and over neither."""
    sampler = ResumableBatchSampler(64, 4, rank=0, world_size=1, seed=1, endless=True)
    data = torch.arange(64)
    attached = iter(torch.utils.data.DataLoader(data, batch_sampler=sampler))
    listed = iter(torch.utils.data.DataLoader(data, batch_sampler=[[1], [2], [3]]))
    shuffled = iter(torch.utils.data.DataLoader(data, shuffle=True))

    def loop(boundary: Callable[[], None]) -> None:
        one, two, three = attached, listed, shuffled
        for _ in range(2):
            boundary()
            next(one)
            next(two)
            next(three)

    assert told(loop, {"sampler": sampler}) == ["loop.shuffled", "three"]


def test_one_object_for_ever_has_no_position_and_so_often_has_one(told: Any) -> None:
    """Taken out: `repeat(None)` beside job.steps() is told as what begins anew."""

    def loop(boundary: Callable[[], None]) -> None:
        nothing, four, lines = itertools.repeat(None), itertools.repeat(None, 4), itertools.repeat(iter([1, 2, 3, 4]))
        for _, _, _, line in zip(range(3), nothing, four, lines, strict=False):
            boundary()
            next(line)

    assert told(loop, {}) == ["four", "lines"]


def test_a_tensor_without_memory_and_an_object_that_raises(told: Any) -> None:
    """FSDP frees memory of parameters; methods of the script's may raise anything, and are not called."""
    freed = torch.zeros(1000)
    freed.untyped_storage().resize_(0)

    class Odd(dict[str, int]):
        def values(self) -> Any:
            raise ZeroDivisionError("odd")

    def first(boundary: Callable[[], None]) -> None:
        empty, count, mapped, turned = (
            freed,
            0,
            np.zeros((2000, 1000))[:, ::2],
            torch.ones(3, dtype=torch.cfloat).conj(),
        )
        for _ in range(3):
            boundary()
            assert turned.is_conj()
            assert len(mapped) == 2000
            count += len(empty)

    def second(boundary: Callable[[], None]) -> None:
        odd, count = Odd(), 0
        for _ in range(3):
            boundary()
            dict.__setitem__(odd, "a", count)
            count += len(odd)

    assert told(first, {}) == ["count"]
    assert told(second, {}) == ["count", "odd"]
