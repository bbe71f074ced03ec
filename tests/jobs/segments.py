"""Two ranks with shared memory of their own: a segment with a fixed name each, and tensors of loader workers in files.

Rank 0 is killed in its fifth step, once.
"""

import os
import signal
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import quick  # noqa: F401 - before torch
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

import ftlaunch_hooks as ft

OUT, TAG = Path(sys.argv[1]), sys.argv[2]
RANK = os.environ["RANK"]


class Rows(Dataset[Any]):
    """Tensors that come from the workers through /dev/shm."""

    def __len__(self) -> int:
        """Samples."""
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        """One sample."""
        return torch.full((4096,), float(index))


def by_name(worker: int) -> None:
    """Share tensors by files with names, as a worker does whose descriptors are few."""
    mp.set_sharing_strategy("file_system")
    note()


def note() -> None:
    with (OUT / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


def main() -> None:
    """Train."""
    mp.set_sharing_strategy("file_system")
    note()
    segment = SharedMemory(create=True, size=4096, name=f"{TAG}_{RANK}")
    model = torch.nn.Linear(4096, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    job = ft.attach(model=model, optimizer=optimizer)
    loader = DataLoader(Rows(), batch_size=8, num_workers=2, worker_init_fn=by_name)
    for _ in job.epochs(1):
        for batch in job.batches(loader):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if RANK == "0" and job.step == 4 and not (OUT / "killed").exists():
                (OUT / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
    segment.close()
    segment.unlink()


if __name__ == "__main__":
    main()
