"""What every script beside calls: where it is killed, and what it leaves.

PUBLIC_OUT: the folder for what it leaves. PUBLIC_FAULTS: `place:epoch:number:how ...`, each done once, on rank 0. how:
kill, storage (a SIGKILL behind which the rank's memory is gone), or term.
"""

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

OUT = Path(os.environ["PUBLIC_OUT"])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


def reach(place: str, epoch: int, number: int = 0) -> None:
    """The script is at a place: do what was ordered there."""
    for fault in os.environ.get("PUBLIC_FAULTS", "").split():
        *at, how = fault.split(":")
        mark = OUT / f"fired_{fault.replace(':', '_')}"
        if RANK or at != [place, str(epoch), str(number)] or mark.exists():
            continue
        mark.touch()
        if how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            continue
        if how == "storage":
            _lose_memory()
        os.kill(os.getpid(), signal.SIGKILL)


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


def note(epoch: int, number: int, loss: Any) -> None:
    """A loss of a batch, or what a validation has found: the same each time it is made."""
    with (OUT / f"losses_{RANK}").open("a") as file:
        file.write(f"{epoch}.{number} {float(torch.as_tensor(loss).detach()).hex()}\n")
    time.sleep(0.02)  # a step of some length: a stop is agreed on some steps ahead


def report(*states: Any) -> None:
    """At the end: a digest of everything that was trained, and of the random numbers."""
    found = hashlib.sha256()
    for state in (*states, torch.get_rng_state()):
        _feed(found, state.state_dict() if hasattr(state, "state_dict") else state)
    (OUT / f"final_{RANK}").write_text(found.hexdigest() + "\n")


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, one in value.items():
            found.update(repr(key).encode())
            _feed(found, one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _feed(found, one)
    else:
        found.update(repr(value).encode())
