"""What DTensor does before its first random number in a process, so that a resumed process does it before its numbers.

On an accelerator DTensor draws through a tracker, of which a process has one. The first operation that draws makes the
tracker, and gives all ranks the state of rank 0's generator then (`_dispatch.py` and `_random.py` in
torch/distributed/tensor, torch 2.13). A process that resumes behind that moment would do so once more, over the states
that were put back. `manual_seed` of `_random.py` makes a tracker without that; torchtitan calls it so that pipeline
stages keep their own numbers. On a CPU there is no tracker, and nothing is sent.
"""

from __future__ import annotations

import sys

import torch
from torch import distributed

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.process.say import say


def has_begun() -> bool:
    """Return whether DTensor has a tracker in this process, and will send no states any more.

    Does not import torch's module, which takes half a second. A torch without the variable has no tracker either.
    """
    module = sys.modules.get("torch.distributed.tensor._random")
    return getattr(module, "_rng_tracker", None) is not None


def begin_as_saved(had_begun: bool) -> None:
    """Make DTensor's tracker where the saved process had one. Puts all of torch's generators back to their seed.

    Call this on all ranks, with the same argument, and put the saved random numbers back after it. Where this process
    has a tracker and the saved one had none, the user is told.
    """
    accelerator = device_port.find_accelerator()
    if accelerator is None or had_begun == has_begun():
        return
    if not had_begun:
        say(
            "DTensor has drawn random numbers in this process before training began, and had not when the state was"
            " saved: it does not give all ranks the random numbers of rank 0 once more, and where those of ranks differ"
            " this run is not exact"
        )
    elif distributed.is_available() and (world := distributed.group.WORLD) is not None:
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415 - seconds, and only jobs with DTensors
        from torch.distributed.tensor import _random  # noqa: PLC0415

        _random.manual_seed(torch.initial_seed(), DeviceMesh.from_group(world, accelerator.type))
    else:
        say(
            "DTensor had drawn random numbers when the state was saved, and there is no process group yet: its next"
            " number gives all ranks the random numbers of rank 0, and where those of ranks differ this run is not"
            " exact; call torch.distributed.init_process_group() before attach()"
        )
