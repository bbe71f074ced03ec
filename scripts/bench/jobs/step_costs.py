"""A rank that trains one shape with and without the hooks in turn, and writes how long a step takes in each turn.

    step_costs.py SHAPE SECONDS FILE

Within seconds a machine's speed may change by more than the hooks cost. The turns are therefore short, and a turn with
the hooks is compared with the two turns beside it. The turns with the hooks take about twice SECONDS in all.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import ftlaunch_hooks as ft

Step = Callable[[], None]
WARM_UP = 20  # steps
TURN = 0.2  # seconds


def stack(width: int, layers: int) -> nn.Sequential:
    """Return a stack of linear layers."""
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, passes: int = 1) -> Step:
    """Return a step of the textbook loop. passes: how often forward and backward run in a step."""

    def step() -> None:
        for _ in range(passes):
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain(milliseconds: float) -> tuple[Step, dict[str, object]]:
    """Return a step with 3 MiB of state, whose passes are repeated until the step takes `milliseconds`."""
    model = stack(256, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(8, 256)
    once = trained(model, optimizer, batch)
    for _ in range(10):
        once()
    took = median(timed(once, 30))
    passes = max(1, round(milliseconds / 1000 / took))
    return trained(model, optimizer, batch, passes), {"model": model, "optimizer": optimizer}


def frozen_base() -> tuple[Step, dict[str, object]]:
    """Return a step with 256 MiB of frozen weights and a small trained head."""
    base = stack(1024, 64).requires_grad_(False)
    head = stack(1024, 1)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-4)
    model = nn.Sequential(base, head)
    return trained(model, optimizer, torch.randn(16, 1024)), {"model": model, "optimizer": optimizer}


def ema() -> tuple[Step, dict[str, object]]:
    """Return a step with 32 MiB of weights and their moving average."""
    model = stack(1024, 8)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    train = trained(model, optimizer, torch.randn(64, 1024))

    def step() -> None:
        train()
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.data.mul_(0.99).add_(weight.data, alpha=0.01)

    return step, {"model": model, "average": average, "optimizer": optimizer}


def fsdp2() -> tuple[Step, dict[str, object]]:
    """Return a step with 400 parameters under fully_shard."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = stack(64, 400)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return trained(model, optimizer, torch.randn(64, 64)), {"model": model, "optimizer": optimizer}


def many_tensors() -> tuple[Step, dict[str, object]]:
    """Return a step with 10,000 parameters of 64 numbers."""
    model = nn.ParameterList(nn.Parameter(torch.randn(64)) for _ in range(10_000))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        torch.stack(list(model)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, {"model": model, "optimizer": optimizer}


SHAPES: dict[str, Callable[[], tuple[Step, dict[str, object]]]] = {
    "a step of 1 ms": lambda: plain(1),
    "a step of 5 ms": lambda: plain(5),
    "a step of 50 ms": lambda: plain(50),
    "frozen base of 256 MiB": frozen_base,
    "EMA of 32 MiB": ema,
    "FSDP2, 400 parameters": fsdp2,
    "10,000 tensors": many_tensors,
}


def timed(step: Step, steps: int) -> list[float]:
    """Return the seconds of each of `steps` steps."""
    found = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return found


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Take the hooks off all optimizers for the time of the context; torch has no public way to do so."""
    tables = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    kept = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    yield
    for table, hooks in zip(tables, kept, strict=True):
        table.update(hooks)


def measure_steps(steps: int, step: Step, cross: Callable[[], object]) -> float:
    """Return the mean seconds of a step, with `cross` after each, over one turn."""
    began = time.perf_counter()
    for _ in range(steps):
        step()
        cross()
    return (time.perf_counter() - began) / steps


def main() -> None:
    """Measure one shape, and write its figures."""
    shape = sys.argv[1]
    seconds = float(sys.argv[2])
    file = Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step, objects = SHAPES[shape]()
    timed(step, WARM_UP)
    steps = max(2, round(TURN / median(timed(step, WARM_UP))))
    job = ft.attach(**objects)
    loop = job.steps(1 << 40)
    next(loop)
    bare = []
    hooked = []
    end = time.perf_counter() + 4 * seconds
    while time.perf_counter() < end or len(hooked) < 10:
        with silenced():
            bare.append(measure_steps(steps, step, lambda: None))
        hooked.append(measure_steps(steps, step, lambda: next(loop)))
    with silenced():
        bare.append(measure_steps(steps, step, lambda: None))
    ratios = [2 * mine / sum(beside) for mine, beside in zip(hooked, pairwise(bare), strict=True)]
    half = len(ratios) // 2
    figures = {"step": median(bare), "first": fmean(ratios[:half]), "then": fmean(ratios[half:])}
    file.write_text(json.dumps(figures))
    loop.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
