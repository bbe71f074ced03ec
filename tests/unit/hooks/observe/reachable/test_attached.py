"""What modules, optimizers, functions and classes keep beside what is saved of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.loops import Holder
from tests.support.snapshots import net


class Tally:
    """A class that counts for itself."""

    made = 0


def test_what_attached_modules_hold_in_lists_and_objects(told: Any) -> None:
    """Also in torch's own. Tried: it fails where those with a get_extra_state() are looked into."""

    class Says(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []

        def get_extra_state(self) -> Any:
            return self.seen

    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self._cache, self.calls, self.inner = [], Holder(mean=0.0, kept=1), 0, Says()

    def loop(boundary: Callable[[], None]) -> None:
        for step in range(3):
            boundary()
            model[1].seen.append(step)
            model[1].inner.seen.append(step)
            model[1]._cache.mean = step
            model[1].calls += 1
            model[0].kernel_sizes = [step]

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Keeps())
    assert told(loop, {"net": model}) == ["net.0.kernel_sizes", "net.1._cache.mean", "net.1.calls", "net.1.seen"]


def test_what_attached_optimizers_hold_beside_their_state(told: Any) -> None:
    """Tried: it fails where torch's own attributes count, and where those of schedulers do."""

    class Lookahead(torch.optim.SGD):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
            self._count = 0

        def step(self, closure: Any = None) -> None:
            super().step()
            self._count += 1
            self.late = self._count
            self.slow[0].mul_(0.5)

    class Says(Lookahead):
        def state_dict(self) -> Any:
            return {**super().state_dict(), "slow": self.slow, "count": self._count}

    def loop(boundary: Callable[[], None]) -> None:
        for _ in range(3):
            boundary()
            for one, scheduler in pairs:
                one.step()
                scheduler.step()

    model = net()
    optimizers = [kind(model.parameters(), lr=0.1) for kind in (Lookahead, Says)]
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 2) for one in optimizers]
    pairs = list(zip(optimizers, schedulers, strict=True))
    attached = {"model": model, "a": optimizers[0], "b": optimizers[1], "s": schedulers[0], "t": schedulers[1]}
    assert told(loop, attached) == ["a._count", "a.late", "a.slow"]


def test_functions_and_classes_that_keep_something(told: Any) -> None:
    """In closures, defaults, attributes and class attributes."""

    def loop(boundary: Callable[[], None]) -> None:
        calls = 0

        def weigh() -> int:
            nonlocal calls
            calls += 1
            return calls

        def remember(value: int, seen: list[int] = []) -> None:  # noqa: B006 - what a script may do
            seen.append(value)

        def count() -> None:
            count.made += 1  # type: ignore[attr-defined]

        count.made = 0  # type: ignore[attr-defined]
        tally, holder = Tally, Holder(add=None, total=0)
        add = holder_adds(holder)
        for step in range(3):
            boundary()
            weigh()
            remember(step)
            count()
            tally.made += 1
            add()

    def holder_adds(holder: Holder) -> Callable[[], None]:
        return holder.tick

    expected = ["Tally.made", "add.total", "calls", "count.made", "remember.defaults", "weigh.calls"]
    assert told(loop, {}) == expected


def test_what_hooks_of_attached_modules_enclose(told: Any) -> None:
    def hook_of() -> Callable[[Any], Any]:
        average = {"mean": 0.0}

        def smooth(gradient: Any) -> Any:
            average["mean"] += 1
            return gradient

        return smooth

    def loop(boundary: Callable[[], None]) -> None:
        for _ in range(3):
            boundary()
            model[0](torch.ones(1, model[0].in_features)).sum().backward()

    model = net()
    model[0].weight.register_hook(hook_of())
    assert told(loop, {"net": model}) == ["net.0.weight.smooth.average"]


class Counting(torch.nn.Linear):
    """Counts its calls in a plain number."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.calls, self.kind, self.missing = 0, "first", float("nan")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Saved(Counting):
    """Says itself what is saved of it."""

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: int) -> None:
        self.calls = state


@pytest.mark.parametrize(("kind", "names"), [(Counting, ["net.0.calls"]), (Saved, []), (torch.nn.Identity, [])])
def test_numbers_and_modes(kind: type[torch.nn.Module], names: list[str], told: Any) -> None:
    """Modes are saved, and NaN is no other than NaN. Tried: it fails where get_extra_state() is not asked for."""
    model = torch.nn.Sequential(kind(), torch.nn.Linear(4, 2))

    def loop(boundary: Callable[[], None]) -> None:
        for _ in range(3):
            boundary()
            model(torch.randn(3, 4))
            model.eval()

    assert told(loop, {"net": model}) == names


def test_what_is_made_anew_before_each_pass(told: Any) -> None:
    """By spectral_norm and weight_norm as hooks. Tried: it fails without `made`."""
    model = torch.nn.Sequential(torch.nn.utils.spectral_norm(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 2))
    model[1].table = torch.zeros(2)

    def loop(boundary: Callable[[], None]) -> None:
        for _ in range(3):
            boundary()
            model(torch.randn(3, 4))
            model[1].table = model[1].table + 1

    assert told(loop, {"net": model}) == ["net.1.table"]
