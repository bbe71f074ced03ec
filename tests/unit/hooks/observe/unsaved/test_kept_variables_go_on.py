"""What a training loop carries from step to step is saved and put back: two lives give what one does."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.loop_lives import Life, live_twice, steps, undisturbed
from tests.support.loops import Holder
from torch import nn

Pair = namedtuple("Pair", "x y")
settings: dict[str, Any] = {}
level = 0.0


class Slotted:
    """Attributes in slots."""

    __slots__ = ("count", "seen")

    def __init__(self) -> None:
        self.count, self.seen = 0, [0]


class Tally:
    """A class that counts for itself."""

    made = 0


def numbers(life: Life) -> Any:
    best, bad, word, big, part = 9.0, 0, "a", 1 << 80, 1j
    life.attach()
    for step in steps(life):
        best = min(best, float(torch.randn(1)))
        bad += step
        word += "b"
        big *= 3
        part *= 1j + step
    return best, bad, word, big, part


def containers(life: Life) -> Any:
    history, table, recent, seen = [0.0], {"a": torch.zeros(2)}, deque([torch.zeros(2)] * 3, maxlen=3), {1}
    pairs: deque[Any] = deque(maxlen=4)
    ordered, counts, lists = OrderedDict(a=1, b=2), Counter("ab"), defaultdict(list)
    keyed: dict[Any, Any] = {(0, "x"): 1}
    life.attach()
    for step in steps(life):
        history.append(float(step))
        table["a"] += torch.randn(2)
        table[f"b{step}"] = table["a"].clone()
        recent.append(torch.randn(2))
        seen.add(step * 7)
        pairs.append(Pair(torch.randn(1), step))
        ordered.move_to_end("a")
        counts["a"] += step
        lists[step % 2].append(step)
        keyed[step, "x"] = (step, [step])
    assert len({id(one) for one in recent}) == 3
    return [history, table, list(recent), list(seen), [tuple(p) for p in pairs], list(ordered), dict(counts),
            dict(lists), keyed]  # fmt: skip


def long_lists(life: Life) -> Any:
    floats, whole = [0.5] * 100, list(range(100))
    life.attach()
    for step in steps(life):
        floats.append(step / 3)
        whole.append(step << 40)
    return floats, whole


def arrays_and_generators(life: Life) -> Any:
    sums, own, drawn = np.zeros(3), Holder(rng=np.random.default_rng(3), torch=torch.Generator().manual_seed(1)), 0.0
    life.attach()
    for _ in steps(life):
        sums += own.rng.normal(size=3)
        drawn += float(torch.rand(1, generator=own.torch)) * 2
    return sums, drawn


def objects(life: Life) -> Any:
    mine, loose, slotted = Holder(count=0, hidden=None), SimpleNamespace(rate=1.0), Slotted()
    life.attach()
    for step in steps(life):
        mine.count += step
        mine.hidden = torch.randn(2) + (0 if mine.hidden is None else mine.hidden)
        loose.rate /= 2
        slotted.count += 1
        slotted.seen.append(step)
        if step == 2:
            mine.late = step
    return mine.count, mine.hidden, vars(mine).get("late"), loose.rate, slotted.count, slotted.seen


def functions_and_classes(life: Life) -> Any:
    calls, Tally.made = 0, 0

    def weigh() -> int:
        nonlocal calls
        calls += 2
        return calls

    def remember(value: int, seen: list[int] = []) -> list[int]:  # noqa: B006 - what a script may do
        seen.append(value)
        return seen

    def count() -> None:
        count.made += 1  # type: ignore[attr-defined]

    count.made = 0  # type: ignore[attr-defined]
    life.attach()
    for step in steps(life):
        weigh()
        remember(step)
        count()
        Tally.made += 3
    return calls, remember(-1), count.made, Tally.made  # type: ignore[attr-defined]


def globals_of_the_module(life: Life) -> Any:
    global level  # noqa: PLW0603 - what a script may do
    settings.clear()
    level = 0.0
    life.attach()
    for step in steps(life):
        if step == 3:
            settings["noise"] = 0.5
        level += settings.get("noise", 0.1)
    return level, settings


def names_for_one_object(life: Life) -> Any:
    """Both stay names for one list; a name that got another object keeps that. And one tensor many times."""
    zero = torch.zeros(2)
    one: list[int] = []
    other, hidden, recent = one, zero, deque([zero] * 3, maxlen=3)
    life.attach()
    for step in steps(life):
        other.append(step)
        hidden = hidden + torch.randn(2)
        recent.append(hidden)
    one.append(-1)
    assert zero.equal(torch.zeros(2))
    return one, other, hidden, list(recent)


def alias_made_in_the_loop(life: Life) -> Any:
    now, before = [0], [0]
    life.attach()
    for step in steps(life):
        before = now
        if step in (1, 8):
            now = [step]
        now.append(step)
    return now, before, now is before


def modules(life: Life) -> Any:
    model, average = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.BatchNorm1d(4)), nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    life.attach(model=model, optimizer=optimizer)
    for step in steps(life):
        if step == 2:
            model[1].p, model[2].momentum = 0.5, 0.01
        loss = model(torch.randn(8, 3)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        for theirs, ours in zip(average.parameters(), model[0].parameters(), strict=True):
            theirs.data.mul_(0.5).add_(ours.data)
    return model.state_dict(), average.state_dict(), scheduler.last_epoch, optimizer.param_groups[0]["lr"]


def swapped_modules(life: Life) -> Any:
    """An odd number of times."""
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    now, then = first, second
    life.attach(first=first, second=second)
    for _ in steps(life):
        with torch.no_grad():
            now.weight += 1
        now, then = then, now
    return first.weight.item(), second.weight.item(), now is first


def hidden_in_a_module(life: Life) -> Any:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.hidden, self.calls, self.seen = nn.RNNCell(2, 3), None, 0, []

        def forward(self, x: Any) -> Any:
            self.hidden = self.cell(x, None if self.hidden is None else self.hidden.detach())
            self.calls += 1
            self.seen = [*self.seen[-2:], x]
            return self.hidden

    model = Recurrent()
    life.attach(model=model)
    for _ in steps(life):
        model(torch.randn(2, 2)).sum().backward()
    return model.hidden, model.calls, model.seen


def a_loop_in_another_function(life: Life) -> Any:
    best, log = 9.0, []

    def epoch(until: int, scale: float) -> float:
        total = 0.0
        for _ in steps(life, until):
            total += float(torch.randn(1)) * scale
        return total

    life.attach()
    for number in range(3):
        result = epoch((number + 1) * 3, 1.0)
        best = min(best, result)
        log.append(result)
    return best, log


def two_loops(life: Life) -> Any:
    life.attach()
    noise, sums = 0.1, 0.0
    for _ in steps(life, 4):
        sums += noise
        noise *= 1.5
    noise = 0.7
    for _ in steps(life):
        sums += noise
        noise *= 1.25
    return noise, sums


def what_passed_epochs_do_once_more(life: Life) -> Any:
    """The second life comes through the ends of the first epochs, with totals of no step."""
    bad, worst, log, best = 0, [0.0], {"a": 1}, 9.0
    life.attach()
    for epoch in range(4):
        total, scale = 0.0, float(torch.rand(1))
        for step in steps(life, 2 * epoch + 3):
            total += 1.0 + step * scale
        if total == 0.0:
            bad += 1
            worst.append(total)
            log["a"] += 1
        best = min(best, total)
    return bad, worst, log, best


TRAININGS = [
    numbers, containers, long_lists, arrays_and_generators, objects, functions_and_classes, globals_of_the_module,
    names_for_one_object, alias_made_in_the_loop, modules, swapped_modules, hidden_in_a_module,
    a_loop_in_another_function, two_loops, what_passed_epochs_do_once_more,
]  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return torch.as_tensor(value).tolist()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("train", TRAININGS)
@pytest.mark.parametrize("dies_at", [1, 4, 6])
def test_two_lives_give_what_one_gives(
    train: Callable[[Life], Any], dies_at: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Tried: each fails where `Survey._begin` puts nothing back."""
    expected = _plain(undisturbed(train, tmp_path / "one"))
    assert _plain(live_twice(train, tmp_path / "two", dies_at)) == expected
    assert "not exact" not in capfd.readouterr().err


@pytest.mark.parametrize("train", [train for train in TRAININGS if train is not a_loop_in_another_function])
def test_what_is_not_kept_is_said(
    train: Callable[[Life], Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """keep=False. In both lives: in the second one by comparing."""
    expected = _plain(undisturbed(train, tmp_path / "one", keep=False))
    assert _plain(live_twice(train, tmp_path / "two", 5, keep=False)) != expected
    said = capfd.readouterr().err
    assert "keeps from step to step" in said
    assert "this process lacks what an earlier attempt had in" in said
