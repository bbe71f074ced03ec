"""The job that chaos breaks: a small deterministic training under DistributedDataParallel, fully_shard, or loose.

Loose ranks train models of their own and meet only every few steps, so that nothing but the snapshots keeps them in
step; their steps are shorter than a copy of their state.

The script is an ordinary training script with the two lines of ftlaunch, which also compares: before a life trains on,
it compares its state with that of an undisturbed run at the same step.
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
DIFFERS = "differs"  # a file that is left by a rank whose state is wrong
# (kind, size) -> width, layers, floats of ballast, steps. With the optimizer's state, large is 72 MiB over two ranks,
# and loose-large is 40 MiB on each rank.
JOBS = {
    ("ddp", "small"): (48, 3, 0, 1200),
    ("ddp", "large"): (1024, 6, 0, 80),
    ("sharded", "small"): (48, 3, 0, 250),
    ("sharded", "large"): (1024, 6, 0, 80),
    ("loose", "small"): (48, 3, 0, 1200),
    ("loose", "large"): (48, 3, 10 << 20, 300),
}
_SYNC = 6  # steps between meetings of loose ranks
_BLOCKS = 64  # stretches of a large tensor whose sums are digested


class Net(nn.Module):
    """Linear layers with dropout, and a buffer that changes in the forward pass instead of the optimizer's step."""

    seen: Tensor

    def __init__(self, width: int, layers: int, ballast: int) -> None:
        super().__init__()
        self.ballast = nn.Parameter(torch.ones(ballast)) if ballast else None
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.drop = nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of shape (batch, width) to one of the same shape."""
        self.seen += len(x)
        for layer in self.layers:
            x = x + self.drop(torch.tanh(layer(x)))
        return x


class Training:
    """Model, optimizer and scheduler of one rank."""

    def __init__(self, kind: str, size: str, rank: int, *, whole: bool = False) -> None:
        """Build them. whole: unsharded, in one process without a process group."""
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
        """Have DistributedDataParallel lay out its buckets before the training begins.

        The buckets are laid out after the first backward pass. With three ranks, a job that is killed right after its
        first step resumes inexactly, and says so; this job must not.
        """
        for _ in range(2):
            self.model(torch.zeros(2, self.width)).sum().backward()
        self.model.zero_grad()
        self.net.seen.zero_()

    def step(self) -> None:
        """Make one step, which draws from torch's and from Python's generator."""
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
        """Return the objects to attach."""
        found = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return found if self.lifter is None else {**found, "lifter": self.lifter}

    def digest(self, *, whole: bool = False) -> str:
        """Return a digest of this rank's tensors, scheduler and generators.

        Args:
            whole: whether only scheduler and unsharded tensors are digested, which is a collective for sharded tensors.
        """
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
    """Digest small tensors by their bytes, and large ones by the sums of 64 stretches, which any torn copy changes."""
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    words = tensor.contiguous().view(-1)
    if words.nbytes > 1 << 20 and words.nbytes % (8 * _BLOCKS) == 0:
        words = words.view(torch.int64).view(_BLOCKS, -1).sum(1)
    digest.update(words.numpy().tobytes())


class Witness:
    """What one life of a rank leaves for the judges: how the life began, and the last step that it began."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.args = args
        self.rank = rank
        self.expected = json.loads((args.oracle / f"rank_{rank}.json").read_text())
        self.life = f"{os.environ.get('CHAOS_GENERATION') or _begun()}.{os.environ['FTLAUNCH_ATTEMPT']}"
        name = args.out / f"progress_{self.life}_{rank}"
        self._progress = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def judge(self, training: Training, step: int, source: str | None) -> None:
        """Compare the state with the undisturbed run; a rank whose state differs leaves a note and exits."""
        same = training.digest() == self.expected[step]
        note = {"life": self.life, "rank": self.rank, "step": step, "source": source, "same": same}
        fd = os.open(self.args.out / "judged.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(fd, json.dumps(note).encode() + b"\n")
        os.close(fd)
        if not same:
            (self.args.out / DIFFERS).touch()
            os._exit(EXIT_MISMATCH)

    def passed(self, step: int) -> None:
        """Note that `step` steps are completed."""
        os.pwrite(self._progress, f"{step:8d}".encode(), 0)


def _begun() -> int:
    """Return when this life began, equal on all ranks; heads that follow each other count attempts from 0 again."""
    now = torch.tensor([time.time_ns()])
    dist.broadcast(now, src=0)
    return int(now)


def run_undisturbed(training: Training, args: argparse.Namespace, rank: int) -> None:
    """Train without ftlaunch, and write the digests of every step."""
    own = []
    whole = []
    for step in range(training.steps + 1):
        own.append(training.digest())
        whole.append(training.digest(whole=True))
        if step < training.steps:
            training.step()
    (args.oracle / f"rank_{rank}.json").write_text(json.dumps(own))
    if rank == 0:
        (args.oracle / "whole.json").write_text(json.dumps(whole))


def run_attached(training: Training, args: argparse.Namespace, rank: int) -> None:
    """Train under ftlaunch."""
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
    """Be one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("ddp", "sharded", "loose"), required=True)
    parser.add_argument("--size", choices=("small", "large"), required=True)
    parser.add_argument("--oracle", type=Path, required=True, help="folder of the undisturbed run's digests")
    parser.add_argument("--out", type=Path, help="folder of what lives leave behind; without it: undisturbed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    run = run_attached if args.out else run_undisturbed
    run(Training(args.kind, args.size, rank), args, rank)
    dist.barrier()  # a rank that ends early would count as failed
    dist.destroy_process_group()
    time.sleep(0.2)  # torch 2.13 aborts when the interpreter ends within milliseconds of the last collective


if __name__ == "__main__":
    main()
