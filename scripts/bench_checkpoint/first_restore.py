"""Measures the restore from memory as a resume has it: once, in a process that has just started.

There the optimizer's state comes into memory that is new, whose pages the kernel must find and clear first. It is
compared with a plain copy of the same bytes, the optimizer's into new memory as well, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from states import Flat
from torch import Tensor, nn

from ftlaunch_hooks.snapshots.slot import Slot
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.saved_tensors import MemoryReader

_STEP = 3
WAYS = ("plain copy", "restore from memory")


def measure(mib: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way, by round. mib: of the state of a model and AdamW."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ftlaunch-bench-") as memory:
        _run("save", mib, memory)
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for way in WAYS[:: 1 if number % 2 else -1]:
                found[way].append(_run(way, mib, memory))
        return found


def _run(way: str, mib: int, memory: str) -> float:
    done = subprocess.run(
        [sys.executable, __file__, way, str(mib), memory], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(json.loads(done.stdout))


def _save(model: nn.Module, optimizer: torch.optim.Optimizer, memory: Path) -> float:
    """Make the optimizer's state, and lay all of it in a slot."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    collected = RankState({"model": model, "optimizer": optimizer}, (), 0, 1).collect()
    slot = Slot(memory, 0, 0)
    slot.lay_out(collected.items)
    slot.host.run()
    common = {"step": _STEP, "consumed_samples": 0, "versions": {}, "state": collected.state}
    slot.write_common(json.dumps(common).encode())
    slot.close()
    return 0.0


def _copy(model: nn.Module) -> float:
    parameters = [parameter.detach() for parameter in model.parameters()]
    ones: list[list[Tensor]] = [[torch.ones_like(parameter) for parameter in parameters] for _ in range(3)]
    began = time.perf_counter()
    for parameter, source in zip(parameters, ones[0], strict=True):
        parameter.copy_(source)
    moments = [torch.empty_like(source).copy_(source) for source in (*ones[1], *ones[2])]  # kept: all of it is new
    seconds = time.perf_counter() - began
    del moments
    return seconds


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, memory: Path) -> float:
    state = RankState({"model": model, "optimizer": optimizer}, (), 0, 1)
    saved = MemoryReader(memory, _STEP, 1, {0: 0})
    began = time.perf_counter()
    state.restore(saved)
    return time.perf_counter() - began


def main() -> None:
    """Do one thing once, and print the seconds that it took."""
    way, mib, memory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    model = Flat(mib)
    optimizer = torch.optim.AdamW(model.parameters())
    if way == "save":
        seconds = _save(model, optimizer, memory)
    elif way == WAYS[0]:
        seconds = _copy(model)
    else:
        seconds = _restore(model, optimizer, memory)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
