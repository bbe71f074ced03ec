"""A tiny gloo job of ten steps, in which rank 1 comes to grief in the phases of its life that it is told.

phases.py OUT "PHASE; ..." END: the first phase is of attempt 0, the next of attempt 1, and so on. END is SIGKILL, or
SIGSTOP for a test that does something meanwhile. `<out>/fired` says that it came so far. Losses and final states as in
tiny.py. The gradients are averaged and descended by hand: what the ranks import counts in every attempt.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

OUT, END = Path(sys.argv[1]), sys.argv[3]
RANK, ATTEMPT, STEPS = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"]), 10
PHASE = dict(enumerate(sys.argv[2].split("; "))).get(ATTEMPT, "none")
OUT.mkdir(exist_ok=True)


def strike() -> None:
    with (OUT / "fired").open("a") as file:
        file.write(f"{PHASE} {RANK}\n")
    os.kill(os.getpid(), signal.Signals[END])


def here(*phase: object) -> bool:
    return RANK == 1 and PHASE.split() == [str(word) for word in phase]


if here("import"):
    strike()

import hashlib  # noqa: E402

import quick  # noqa: E402, F401 - before torch
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import ftlaunch_hooks as ft  # noqa: E402
from ftlaunch_contract.pages.page import NONE, Page, page_path  # noqa: E402


class InMidCopy(TorchDispatchMode):
    """Strikes when a snapshot's first tensor is copied, and the others are not."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._foreach_copy_.default:
            torch.ops.aten.copy_.default(args[0][0], args[1][0])
            strike()
        return func(*args, **(kwargs or {}))


class Descent:
    """With momentum."""

    def __init__(self, model: nn.Module) -> None:
        self.pairs = [(parameter, torch.zeros_like(parameter)) for parameter in model.parameters()]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, momentum in self.pairs:
            dist.all_reduce(parameter.grad)
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.sub_(momentum, alpha=0.005)
            parameter.grad = None

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {str(number): momentum for number, (_, momentum) in enumerate(self.pairs)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for number, (_, momentum) in enumerate(self.pairs):
            momentum.copy_(state[str(number)])


def until_rank_0_waits() -> None:
    """For us, in init_process_group: its store listens."""
    store = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(store) == 0:
                return
        time.sleep(0.01)


def page_of(rank: int) -> Page:
    return Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), rank))


def until_rank_0_has(step: int) -> None:
    """In memory too: else this rank's death would cost the job that step."""
    page = page_of(0)
    while page.step < step:
        time.sleep(0.001)


def until_the_saver_reads() -> None:
    page = page_of(RANK)
    while page.reading == NONE:
        time.sleep(0.001)


if here("init"):
    until_rank_0_waits()
    strike()
dist.init_process_group("gloo")
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = Descent(model)
torch.manual_seed(7 + RANK)
if here("restore"):
    strike()
job = ft.attach(model=model, optimizer=optimizer)
with (OUT / f"loss_{RANK}.csv").open("a", buffering=1) as losses:
    for step in job.steps(STEPS):
        if here("step", step):
            until_rank_0_has(step)
            strike()
        if here("checkpoint", step):
            until_the_saver_reads()
            strike()
        x = torch.randn(4, 16)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.write(f"{step} {loss.item().hex()}\n")
        if here("snapshot", step + 1):
            InMidCopy().__enter__()
if here("teardown"):
    until_rank_0_has(STEPS)
    strike()
digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
for tensor in [*model.state_dict().values(), *optimizer.state_dict().values()]:
    digest.update(tensor.numpy().tobytes())
(OUT / f"final_{RANK}").write_text(digest.hexdigest())
dist.destroy_process_group()
time.sleep(0.2)  # torch 2.13 aborts where the interpreter ends within milliseconds of the last collective
