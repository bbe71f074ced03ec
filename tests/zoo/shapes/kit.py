"""What every shape of the zoo calls: where it is killed, and what it was at its end.

FT_DEVICE: where tensors are made that are not told where; `sim` for the simulated accelerator, whose delays ZOO_DELAYS
has as JSON. ZOO_OVERLAPPED: snapshots, of whatever size, are copied from its memory while the script goes on. ZOO_OUT:
the folder for what it leaves. ZOO_KILL:
`rank:step:how ...`, each done once; how is `memory`, a SIGKILL, or `storage`, a SIGKILL after which the rank's memory
is gone, or `hang`: it keeps the GIL for ever, so that none of its threads can do anything.
"""

import ctypes
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

OUT = Path(os.environ["ZOO_OUT"])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
if (DEVICE := os.environ.get("FT_DEVICE", "cpu")).startswith("sim"):
    sys.path.append(str(Path(__file__).parents[3]))
    from tests.accelerator import simulated

    simulated.register()
    simulated.plug_in()
    simulated.set_delays(**json.loads(os.environ.get("ZOO_DELAYS", "{}")))
    if "ZOO_OVERLAPPED" in os.environ:
        from ftlaunch_hooks.snapshots import overlapped_copies
        from ftlaunch_hooks.snapshots.private_room import PrivateRoom

        PrivateRoom.has_room = lambda *_: False
        PrivateRoom.has_room_for_buffers = lambda *_: True
        overlapped_copies.LEAST_BYTES = 4
MESH = "sim" if DEVICE.startswith("sim") else "cpu"
"""the type of device of a mesh: on CUDA this would take a GPU for each rank"""
if DEVICE != "cpu":
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic
    torch.set_default_device(DEVICE)
random.seed(0)
np.random.seed(0)


def keep_data_on_cpu() -> None:
    """Make tensors on the CPU from now on, where the workers of a DataLoader read them. The script uses DEVICE."""
    torch.set_default_device(None)


def join() -> None:
    """A process group, where there are several ranks. More ranks than devices of the simulated kind share them."""
    if WORLD > 1:
        if MESH == "sim":
            simulated.set_device(RANK % simulated.DEVICES)
            torch.empty(1)  # a mesh leaves the current device as it is once the process uses a device
        dist.init_process_group("gloo" if MESH == "cpu" else f"cpu:gloo,sim:{simulated.BACKEND}")


def moment(step: int, loss: Any = 0.0) -> None:
    """In the middle of a step, or at its end: note the loss, and die where the zoo wants it."""
    with (OUT / f"losses_{RANK}").open("a") as file:
        file.write(f"{step} {float(loss.detach() if isinstance(loss, torch.Tensor) else loss).hex()}\n")
    for plan in os.environ.get("ZOO_KILL", "").split():
        rank, at, how = plan.split(":")
        mark = OUT / f"killed_{rank}_{at}_{how}"
        if (int(rank), int(at)) == (RANK, step) and not mark.exists():
            mark.touch()
            if how == "storage":
                _lose_memory()
            if how == "hang":
                _keep_the_gil()
            os.kill(os.getpid(), signal.SIGKILL)


def _keep_the_gil() -> None:
    mutex, library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # which keeps it over a call
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def _lose_memory() -> None:
    """Once there is a checkpoint, and nobody reads a snapshot."""
    from ftlaunch_contract.pages.page import NONE, Page, page_path

    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), RANK))
    checkpoints = Path(os.environ["FTLAUNCH_CHECKPOINT_DIR"])
    deadline = time.monotonic() + 60
    while page.saved < page.save_step or not any(checkpoints.glob("iteration_???????")):
        assert time.monotonic() < deadline, "there is no checkpoint"
        time.sleep(0.01)
    for slot in range(len(page.slot_steps())):
        page.set_slot(slot, NONE)


def report(**objects: Any) -> None:
    """At the end: digests of everything that is trained, and of all random numbers."""
    objects["torch rng"] = torch.get_rng_state()
    objects["numpy rng"] = repr(np.random.get_state())
    objects["python rng"] = repr(random.getstate())
    if MESH == "sim":
        objects["sim rng"] = simulated.get_rng_state_all()
    if DEVICE == "cuda":
        objects["cuda rng"] = torch.cuda.get_rng_state()
        (OUT / f"allocated_{RANK}").write_text(str(torch.cuda.max_memory_allocated()))
    lines = [f"{name} {digest(value)}" for name, value in objects.items()]
    (OUT / f"final_{RANK}").write_text("\n".join(lines) + "\n")
    if WORLD > 1:
        dist.destroy_process_group()


def digest(value: Any) -> str:
    """Of tensors (bit for bit), containers of them, modules and optimizers."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    if hasattr(value, "to_local"):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        found.update(f"{dense.dtype} {tuple(dense.shape)}".encode())
        found.update(dense.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif hasattr(value, "state_dict"):
        _feed(found, value.state_dict())
        if isinstance(value, torch.nn.Module):
            _feed(found, [parameter.grad for parameter in value.parameters()])
    elif isinstance(value, Mapping):
        for key in value:
            found.update(repr(key).encode())
            _feed(found, value[key])
    elif isinstance(value, (list, tuple)):
        for one in value:
            _feed(found, one)
    else:
        found.update(repr(value).encode())
