"""A job in the form that people write: epochs, batches of a DataLoader, a validation behind them.

EPOCHS_FAULTS: `place:epoch:number:how ...`, each done once, on rank 0. place: head, batch, stepped, tail, validation,
late, or between; number: of the batch. how: kill, storage (a SIGKILL behind which the rank's memory is gone), or term.
"""

import argparse
import hashlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ftlaunch_hooks as ft
from ftlaunch_contract.pages.page import NONE, Page, page_path

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Rows(Dataset[Any]):
    """Samples that draw random numbers as they are made."""

    def __init__(self, length: int) -> None:
        """length: samples."""
        self.rows = torch.randn(length, 8)
        self.rng = random.Random(7)

    def __len__(self) -> int:
        """Samples."""
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        """A row with noise of the process's generator, and of one that the data set holds."""
        return self.rows[index] + 0.1 * torch.randn(8) + 0.1 * self.rng.random()


class History:
    """What validation has found, epoch by epoch, and how many batches each epoch had."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.found: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        """All."""
        return {"found": list(self.found)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All."""
        self.found = list(state["found"])


def lose_memory() -> None:
    """Once there is a checkpoint, and nobody reads a snapshot."""
    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), RANK))
    checkpoints = Path(os.environ["FTLAUNCH_CHECKPOINT_DIR"])
    deadline = time.monotonic() + 60
    while page.saved < page.save_step or not any(checkpoints.glob("iteration_???????")):
        assert time.monotonic() < deadline, "there is no checkpoint"
        time.sleep(0.01)
    for slot in range(len(page.slot_steps())):
        page.set_slot(slot, NONE)


def await_order() -> None:
    """Wait until the ranks have been told at which step to stop: steps are short here, and would outrun it."""
    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), RANK))
    deadline = time.monotonic() + 60
    while page.stop_at == NONE:
        assert time.monotonic() < deadline, "no step to stop at was told"
        time.sleep(0.001)


def reach(out: Path, place: str, epoch: int, number: int = 0) -> None:
    """The script is at a place: do what was ordered there."""
    for fault in os.environ.get("EPOCHS_FAULTS", "").split():
        *at, how = fault.split(":")
        mark = out / f"fired_{fault.replace(':', '_')}"
        if RANK or at != [place, str(epoch), str(number)] or mark.exists():
            continue
        mark.touch()
        if how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            await_order()
            continue
        if how == "storage":
            lose_memory()
        os.kill(os.getpid(), signal.SIGKILL)


def digest(*states: Any) -> str:
    """Of tensors, and what else there is, bit for bit."""
    found = hashlib.sha256()
    for state in states:
        for value in state.values() if isinstance(state, dict) else state:
            found.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return found.hexdigest()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--bare", action="store_true", help="no job.epochs(): the script finds its epoch itself")
    parser.add_argument("--decay", action="store_true", help="the head of an epoch's body changes a parameter")
    parser.add_argument("--nap", type=float, default=0.0, help="seconds of each step")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(11 + RANK)
    if WORLD > 1:
        dist.init_process_group("gloo")
    rows = Rows(22)
    sampler = DistributedSampler(rows, WORLD, RANK, seed=3) if WORLD > 1 else None
    loader = DataLoader(
        rows, 4, shuffle=sampler is None, sampler=sampler, num_workers=args.workers,
        persistent_workers=args.persistent,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
    if WORLD > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    history = History()
    job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler, history=history)
    epochs = range(job.step // len(loader), args.epochs) if args.bare else job.epochs(args.epochs)
    for epoch in epochs:
        reach(args.out, "head", epoch)
        if sampler is not None:
            sampler.set_epoch(epoch)
        if args.decay:
            with torch.no_grad():
                next(model.parameters()).mul_(0.9)
        for number, batch in enumerate(job.batches(loader)):
            reach(args.out, "batch", epoch, number)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean() * (1 + number / 10)
            loss.backward()
            time.sleep(args.nap)
            optimizer.step()
            optimizer.zero_grad()
            with (args.out / f"loss_{RANK}.csv").open("a") as file:
                file.write(f"{job.step} {loss.item().hex()}\n")
            reach(args.out, "stepped", epoch, number)
        reach(args.out, "tail", epoch)
        history.found.append(float(torch.rand(()) + sum(p.detach().sum() for p in model.parameters())))
        reach(args.out, "validation", epoch)
        scheduler.step()
        reach(args.out, "late", epoch)
    if args.bare:
        job.finish()
    state = digest(
        model.state_dict(), history.found, [scheduler.get_last_lr(), torch.get_rng_state(), rows.rng.random()]
    )
    (args.out / f"final_{RANK}").write_text(f"{job.step} {state}\n")
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
