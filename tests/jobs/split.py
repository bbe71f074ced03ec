"""A job whose optimizers split their work between the ranks: DDP on gloo, each matrix stepped by another kind of them.

Losses go to `<out>/loss_<rank>.csv`, a digest of parameters and generators to `<out>/final_<rank>`.
FAULT="sigkill rank step" is a fault in the body of that step, in attempt 0.
"""

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--step-time", type=float, default=0.0)
args = parser.parse_args()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
AT = [*map(int, os.environ.get("FAULT", "sigkill -1 -1").split()[1:]), 0]
args.out.mkdir(parents=True, exist_ok=True)


class Split(torch.optim.Optimizer):
    """Like Muon: parameter i is stepped by rank i modulo the number of ranks, which hands it to the others."""

    def __init__(self, params, allocate: str) -> None:
        """allocate: "own" makes momentum for what this rank steps, "all" for everything."""
        super().__init__(params, {})
        self.allocate = allocate

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            state, mine = self.state[parameter], index % WORLD == RANK
            if not state and (mine or self.allocate == "all"):
                state["momentum"] = torch.zeros_like(parameter)
            if mine:
                state["momentum"].mul_(0.9).add_(parameter.grad)
                parameter.sub_(0.05 * state["momentum"] / (state["momentum"].norm() + 1.0))
            dist.broadcast(parameter, index % WORLD)


dist.init_process_group("gloo")
torch.manual_seed(11)
net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
model = DistributedDataParallel(net)
torch.manual_seed(5 + RANK)
by_hand = list(net[2].parameters())  # torch's own optimizer, over this rank's share
optimizers = {
    "own": Split(net[0].parameters(), "own"),
    "everywhere": Split(net[1].parameters(), "all"),
    "share": torch.optim.SGD(by_hand[RANK::WORLD], lr=0.05, momentum=0.9),
    "whole": torch.optim.AdamW(net[3].parameters(), lr=0.01),
}
job = ft.attach(model=model, **optimizers)
losses = (args.out / f"loss_{RANK}.csv").open("a", buffering=1)
for step in job.steps(args.steps):
    inputs = torch.randn(4, 8)
    loss = (model(inputs) - inputs.flip(1)).square().mean()
    loss.backward()
    if [RANK, step, job.attempt] == AT:
        (args.out / "fired").write_text(f"{step}\n")
        os.kill(os.getpid(), signal.SIGKILL)
    for optimizer in optimizers.values():
        optimizer.step()
    with torch.no_grad():
        for index, parameter in enumerate(by_hand):
            dist.broadcast(parameter, index % WORLD)
    net.zero_grad()
    losses.write(f"{step} {loss.item().hex()}\n")
    time.sleep(args.step_time)

digest = hashlib.sha256()
for tensor in (*net.state_dict().values(), torch.get_rng_state()):
    digest.update(tensor.numpy().tobytes())
(args.out / f"final_{RANK}").write_text(digest.hexdigest())
dist.destroy_process_group()
time.sleep(0.2)  # see tiny.py
