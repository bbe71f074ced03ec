"""A rank is killed after each tensor of a snapshot; after every death the newest common step is read and compared.

Usage: killed_in_copy.py DIRECTORY. Prints one line a death: tensors copied, step that was whole.
One process imports torch; each life is a fork of it, with two ranks in it, of which rank 0 dies in its third copy.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, create_page, open_pages, page_path
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.saved_tensors import MemoryReader

BASE = 10  # the step both ranks have; then 11 on both, and rank 0 dies while it copies 12
SIZE = 64


class Tensors(nn.Module):
    """Six parameters and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(SIZE)) for _ in range(6))
        self.register_buffer("seen", torch.zeros(3))


class Killer(TorchDispatchMode):
    """Copies tensor after tensor where all are copied at once, and kills the process after `left` of them."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def one_more(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._foreach_copy_.default:
            for target, source in zip(args[0], args[1], strict=True):
                self.one_more()
                torch.ops.aten.copy_.default(target, source)
            self.one_more()
            return None
        return func(*args, **(kwargs or {}))


def life(memory: Path, left: int) -> None:
    pages = open_pages(memory, 2)
    ranks = []
    for rank, page in enumerate(pages):
        page.begin(0, os.getpid(), 0)
        model = Tensors()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        state = RankState({"model": model, "optimizer": optimizer}, (), rank, 2)
        ranks.append((model, Snapshotter(state, page, pages, memory, rank, {})))
    for step in (BASE, BASE + 1):
        for model, snapshots in ranks:
            fill(model, step)
            snapshots.capture(step)
    for model, snapshots in reversed(ranks):  # rank 1 has step 12 before rank 0 begins with it
        fill(model, BASE + 2)
        if snapshots is ranks[0][1]:
            Killer(left).__enter__()
        snapshots.capture(BASE + 2)
    os._exit(0)


def fill(model: nn.Module, step: int) -> None:
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values()):
            tensor.fill_(100 * step + number)


def common(memory: Path) -> int:
    """The newest step both ranks have. Every step that any slot is said to hold is what it was."""
    pages = open_pages(memory, 2)
    for rank, page in enumerate(pages):
        for slot, step in enumerate(page.slot_steps()):
            if step != NONE:
                check(layout.slot_dir(memory, rank, slot), rank, step)
    step = max(set(pages[0].slot_steps()) & set(pages[1].slot_steps()))
    assert step != NONE, "no step is whole on both ranks"
    MemoryReader(memory, step, 2, {rank: page.slot_steps().index(step) for rank, page in enumerate(pages)})
    for page in pages:
        page.close()
    return step


def check(slot: Path, rank: int, step: int) -> None:
    tensors = load_file(slot / "model.safetensors")
    for number, name in enumerate(Tensors().state_dict()):
        values = tensors[f"model.{name}" + ("@1" if rank else "")].unique().tolist()
        assert values == [100 * step + number], f"{name} of rank {rank} at step {step}: {values}"


def main(memory: Path) -> None:
    torch.set_num_threads(1)
    for left in range(1000):
        for page in range(2):
            page_path(memory, page).unlink(missing_ok=True)
            create_page(page_path(memory, page))
        child = os.fork()
        if child == 0:
            life(memory, left)
        status = os.waitpid(child, 0)[1]
        print(left, common(memory), flush=True)
        if status == 0:
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status


if __name__ == "__main__":
    main(Path(sys.argv[1]))
