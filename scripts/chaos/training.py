"""The job that chaos breaks: a small deterministic training under DistributedDataParallel or fully_shard, or loose.

Loose ranks train models of their own and meet every few steps only, so that nothing but the snapshots keeps them in
step; their steps are shorter than a copy of their state.

An ordinary training script with the two lines of ftlaunch; what it does besides is to compare: the first thing
each life does with its state, before it trains on, is to look up what an undisturbed run had at that step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

EXIT_MISMATCH = 66
DIFFERS = "differs"  # a file left by a rank whose state is not what it must be
# (kind, size) -> width, layers, floats of ballast, steps. With the optimizer's state, large is 72 MiB over two ranks,
# loose-large 40 MiB on each.
JOBS = {
    ("ddp", "small"): (48, 3, 0, 1200),
    ("ddp", "large"): (1024, 6, 0, 80),
    ("sharded", "small"): (48, 3, 0, 250),
    ("sharded", "large"): (1024, 6, 0, 80),
    ("loose", "small"): (48, 3, 0, 1200),
    ("loose", "large"): (48, 3, 10 << 20, 300),
}
_SYNC = 6  # steps between meetings of loose ranks
_BLOCKS = 64


class Net(nn.Module):
    """Linear layers with dropout, and a buffer that changes in the forward, not in the optimizer's step."""

    seen: Tensor

    def __init__(self, width: int, layers: int, ballast: int) -> None:
        super().__init__()
        self.ballast = nn.Parameter(torch.ones(ballast)) if ballast else None
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.drop = nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width) -> the same."""
        self.seen += len(x)
        for layer in self.layers:
            x = x + self.drop(torch.tanh(layer(x)))
        return x


class Training:
    """Model, optimizer and scheduler of one rank, and a step."""

    def __init__(self, kind: str, size: str, rank: int, *, whole: bool = False) -> None:
        """whole: unsharded, in one process, without a process group."""
        self.kind = kind
        self.width, layers, ballast, self.steps = JOBS[kind, size]
        torch.manual_seed(11)
        random.seed(rank)
        self.net = Net(self.width, layers, ballast)
        self.model: nn.Module = self.net
        if kind == "ddp" and not whole:
            self.model = DistributedDataParallel(self.net)
            self._lay_out_buckets()
        elif kind == "sharded" and not whole:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for layer in self.net.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.net, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.net.layers.parameters(), lr=1e-3)
        self.lifter = None if self.net.ballast is None else torch.optim.SGD([self.net.ballast], lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10, 0.98)
        torch.manual_seed(1000 + rank)

    def _lay_out_buckets(self) -> None:
        """With three ranks a job that is killed after its very first step goes on inexactly, and says so: none is here.

        DistributedDataParallel lays out its buckets behind that step; so it is made before the training.
        """
        for _ in range(2):
            self.model(torch.zeros(2, self.width)).sum().backward()
        self.model.zero_grad()
        self.net.seen.zero_()

    def step(self) -> None:
        """One step; it draws from torch's and from Python's generator."""
        x = torch.randn(2, self.width) * (1 + random.random())
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        if self.net.ballast is not None and self.lifter is not None:
            self.net.ballast.grad = loss.detach().expand_as(self.net.ballast)
            self.lifter.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        if self.kind == "loose" and self.scheduler.last_epoch % _SYNC == 0:
            dist.barrier()

    def objects(self) -> dict[str, Any]:
        """What is attached."""
        found = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return found if self.lifter is None else {**found, "lifter": self.lifter}

    def digest(self, *, whole: bool = False) -> str:
        """Of this rank's tensors, scheduler and generators; `whole`: of the unsharded tensors alone (a collective)."""
        digest = hashlib.sha256()
        for name, tensor in self._tensors():
            digest.update(name.encode())
            _digest_tensor(digest, _gather(tensor) if whole else _local(tensor))
        digest.update(repr(sorted(self.scheduler.state_dict().items())).encode())
        if not whole:
            digest.update(repr(random.getstate()).encode())
            digest.update(torch.get_rng_state().numpy().tobytes())
        return digest.hexdigest()

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "seen", self.net.seen
        for name, parameter in self.net.named_parameters():
            yield name, parameter
            for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                yield f"{name}.{key}", value


def _gather(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _digest_tensor(digest: Any, tensor: Tensor) -> None:
    """Small tensors by their bytes; of large ones the sums of 64 stretches, which any torn copy changes."""
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    words = tensor.contiguous().view(-1)
    if words.nbytes > 1 << 20 and words.nbytes % (8 * _BLOCKS) == 0:
        words = words.view(torch.int64).view(_BLOCKS, -1).sum(1)
    digest.update(words.numpy().tobytes())


class Witness:
    """What one life of a rank leaves for the judges: how it began, and the last step it began."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.args, self.rank = args, rank
        self.expected = json.loads((args.oracle / f"rank_{rank}.json").read_text())
        self.life = f"{os.environ.get('CHAOS_GENERATION') or _begun()}.{os.environ['FTLAUNCH_ATTEMPT']}"
        name = args.out / f"progress_{self.life}_{rank}"
        self._progress = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def judge(self, training: Training, step: int, source: str | None) -> None:
        """Compare with the undisturbed run; a rank that differs leaves a note and goes no further."""
        same = training.digest() == self.expected[step]
        note = {"life": self.life, "rank": self.rank, "step": step, "source": source, "same": same}
        fd = os.open(self.args.out / "judged.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(fd, json.dumps(note).encode() + b"\n")
        os.close(fd)
        if not same:
            (self.args.out / DIFFERS).touch()
            os._exit(EXIT_MISMATCH)

    def passed(self, step: int) -> None:
        """`step` steps are completed."""
        os.pwrite(self._progress, f"{step:8d}".encode(), 0)


def _begun() -> int:
    """When this life began, the same on all ranks: heads that follow each other count their attempts anew."""
    now = torch.tensor([time.time_ns()])
    dist.broadcast(now, src=0)
    return int(now)


def run_undisturbed(training: Training, args: argparse.Namespace, rank: int) -> None:
    """Without ftlaunch: leave the digests of every step."""
    own, whole = [], []
    for step in range(training.steps + 1):
        own.append(training.digest())
        whole.append(training.digest(whole=True))
        if step < training.steps:
            training.step()
    (args.oracle / f"rank_{rank}.json").write_text(json.dumps(own))
    if rank == 0:
        (args.oracle / "whole.json").write_text(json.dumps(whole))


def run_attached(training: Training, args: argparse.Namespace, rank: int) -> None:
    """Under ftlaunch."""
    job = ft.attach(**training.objects())
    witness = Witness(args, rank)
    first = job.step
    for step in job.steps(training.steps):
        if step == first:
            witness.judge(training, step, job.restored_from)
        witness.passed(step)
        training.step()
    witness.judge(training, job.step, "end")


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("ddp", "sharded", "loose"), required=True)
    parser.add_argument("--size", choices=("small", "large"), required=True)
    parser.add_argument("--oracle", type=Path, required=True, help="folder of the undisturbed run's digests")
    parser.add_argument("--out", type=Path, help="folder of what lives leave behind; without it: undisturbed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (run_attached if args.out else run_undisturbed)(Training(args.kind, args.size, rank), args, rank)
    dist.barrier()  # a rank that ends early would be taken for one that fails
    dist.destroy_process_group()
    time.sleep(0.2)  # torch 2.13 aborts when the interpreter ends within milliseconds of the last collective


if __name__ == "__main__":
    main()
