"""A training job whose ranks share its state in any of seven ways; what they hold is told as digests.

groups: two models, each on every second rank, which keep theirs equal without a wrapper, as data-parallel ranks beside
tensor parallelism do. pairs: tensor parallelism in pairs of ranks, which add up their gradients.

`<out>/<begin|after_<steps>|end>_<rank>.json`: the step, where it was restored from, a digest of the whole model and
optimizer (the same however they are shared out), this rank's random numbers, and `mine`, an object that every rank has
its own of.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

if {"fsdp", "hsdp", "tp", "pairs"}.isdisjoint(sys.argv):  # DTensor needs all that torch imports
    import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["plain", "ddp", "fsdp", "hsdp", "tp", "groups", "pairs"], default="plain")
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--step-time", type=float, default=0.0)
parser.add_argument("--tell-steps", action="store_true")
parser.add_argument("--across", action="store_true", help="hsdp: neighbours hold the same shard")
parser.add_argument("--apart", action="store_true", help="replicas begin with other values, which nobody broadcasts")
args = parser.parse_args()
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
args.out.mkdir(parents=True, exist_ok=True)


class Mine:
    """Something that is not the same on every rank."""

    def __init__(self) -> None:
        self.tensor, self.value = torch.full((2,), float(RANK)), f"rank {RANK} of {WORLD}"

    def state_dict(self) -> dict:
        return {"tensor": self.tensor, "value": self.value}

    def load_state_dict(self, state: dict) -> None:
        self.tensor, self.value = state["tensor"], state["value"]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def build() -> nn.Module:
    inner = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6))
    if args.kind == "plain":
        return inner
    dist.init_process_group("gloo")
    if args.kind == "ddp":
        return DistributedDataParallel(inner)
    return inner if args.kind == "groups" else shard(inner)


def shard(inner: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # a second's imports, where they are needed
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    # hsdp: two ranks hold the shards of one whole, and the next two the same ones
    hybrid = args.kind == "hsdp"
    shape, names = ((WORLD // 2, 2), ("replicate", "shard")) if hybrid else ((WORLD,), ("all",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if args.across:
        mesh = DeviceMesh("cpu", torch.arange(WORLD).view(-1, WORLD // 2).T, mesh_dim_names=names)
    if args.kind == "pairs":
        mesh = init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=("data", "tensor"))["tensor"]
    if args.kind in ("tp", "pairs"):
        return parallelize_module(inner, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (inner[0], inner[2], inner):
        fully_shard(layer, mesh=mesh)
    return inner


def tell(moment: str) -> None:
    digest = hashlib.sha256()
    names = [name.removeprefix("module.") for name, _ in model.named_parameters()]
    for name, parameter in sorted(zip(names, model.parameters(), strict=True)):
        tensors = [parameter, *(value for _, value in sorted(optimizer.state[parameter].items()))]
        for tensor in map(whole, tensors):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    told = {
        "step": job.step,
        "from": job.restored_from,
        "digest": digest.hexdigest(),
        "weights": hashlib.sha256(b"".join(whole(p).numpy().tobytes() for p in model.parameters())).hexdigest(),
        "rng": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        "mine": [mine.value, mine.tensor.tolist()],
        "lr": optimizer.param_groups[0]["lr"],
    }
    part = args.out / f"{moment}_{RANK}.part"
    part.write_text(json.dumps(told))
    part.rename(part.with_suffix(".json"))


ALIKE = {"groups": RANK % 2, "hsdp": RANK % 2, "pairs": 0}
torch.manual_seed(100 + (RANK if args.apart else ALIKE.get(args.kind, RANK)))  # replicas begin alike
model = build()
GROUP = list(range(RANK % 2, WORLD, 2))
by_hand = args.kind in ("groups", "pairs")
groups = [dist.new_group(list(range(first, WORLD, 2))) for first in (0, 1)] if by_hand else []
replicated = dict.fromkeys(("model", "optimizer"), lambda _: GROUP) if args.kind == "groups" else ()
torch.manual_seed(100 + (RANK // 2 if args.kind == "pairs" else RANK))  # a pair is given the same batches
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
mine = Mine()
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler, mine=mine, replicated=replicated)
job.restore_rng()  # as steps() does it: what is told is what training begins with
tell("begin")
for _ in job.steps(args.steps):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    if groups:
        for parameter in model.parameters():
            gradient = parameter.grad.to_local() if args.kind == "pairs" else parameter.grad
            dist.all_reduce(gradient, group=groups[RANK % 2])
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    if args.tell_steps:
        tell(f"after_{job.step + 1}")
    if args.step_time:
        time.sleep(args.step_time)
tell("end")
if WORLD > 1:
    dist.destroy_process_group()
    time.sleep(0.2)  # see tiny.py
