"""A rank without torch whose training is kept by the hooks: its state is two NumPy arrays.

    training.py HOME HOW

The rank begins once the file HOME/begin exists. Rank 1 fails once, in the middle of a step: with HOW `rank` it kills
itself; with `hang` it sleeps; with `node` it kills its agent and itself, as soon as another node has a copy of its
memory, or has had the time for one. The rank writes a digest of its final state to HOME/done_RANK, which must equal
`trained(rank)`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 12
FAULT = 6  # the step in which rank 1 fails
State = dict[str, "np.ndarray[Any, Any]"]


def first_state(rank: int) -> State:
    """Return the state before the first step."""
    return {"weights": np.arange(64, dtype=np.float64) + rank, "moments": np.zeros(64)}


def advance(state: State, step: int) -> State:
    """Return the state after one more step."""
    moments = 0.9 * state["moments"] + np.sin(step * state["weights"])
    return {"weights": state["weights"] - 0.1 * moments, "moments": moments}


def digest(state: State) -> str:
    """Return a digest of all bytes of a state."""
    return hashlib.sha256(b"".join(array.tobytes() for array in state.values())).hexdigest()


def trained(rank: int) -> str:
    """Return the digest of the final state of an undisturbed rank."""
    state = first_state(rank)
    for step in range(1, STEPS + 1):
        state = advance(state, step)
    return digest(state)


def train(home: Path, how: str) -> None:
    """Train under the supervisor, as a script with ftlaunch_mindspore does."""
    _do_without_mindspore()
    from ftlaunch_contract.saving_request import SavingRequest
    from ftlaunch_contract.shared_keys import own_key
    from ftlaunch_hooks.job.supervised import Supervised
    from ftlaunch_hooks.process import bootstrap
    from ftlaunch_mindspore.kept_job import KeptJob
    from ftlaunch_mindspore.saving.snapshots import ArrayState

    page = bootstrap.own_page() or bootstrap.acquire_page_for_launcher()
    assert page is not None
    coordinator = Supervised(page)
    rank = coordinator.rank
    assert _wait_until((home / "begin").exists, 60.0), "nobody said that the ranks may begin"
    job = KeptJob(coordinator, SavingRequest(steps=4))
    keys = {"weights": own_key("network.weights", rank), "moments": own_key("training.moments", rank)}
    state = first_state(rank)
    if job.saved is not None:
        state = {name: job.saved.arrays[key].copy() for name, key in keys.items()}

    def collect() -> ArrayState:
        trees = {
            "network": {"kind": "module", "tensors": ["weights"], "extra": {}},
            "training": {"kind": "mindspore", "parameters": {}, "loss_scale": {}},
        }
        groups = {"model": {keys["weights"]: state["weights"]}, "opt": {keys["moments"]: state["moments"]}}
        return ArrayState(groups, trees)

    job.enter(collect, consumed=job.step, total=STEPS)
    for step in range(job.step + 1, STEPS + 1):
        if (step, rank) == (FAULT, 1) and not (home / "killed").exists():
            _fail(home, how)
        time.sleep(0.03)
        _meet(home, rank, step)
        state = advance(state, step)
        job.step_made()
        job.cross(step, step)
    (home / f"done_{rank}").write_text(digest(state))
    job.end()


def _meet(home: Path, rank: int, step: int) -> None:
    """Wait until the other rank has come to this step, as ranks that reduce their gradients do."""
    (home / f"step_{step}_of_{rank}").touch()
    assert _wait_until((home / f"step_{step}_of_{1 - rank}").exists, 60.0), "the other rank has not come to this step"


def _fail(home: Path, how: str) -> None:
    if how == "node":
        own = Path(os.environ["FTLAUNCH_MEMORY_DIR"])
        others = f"{own.name.rpartition('.')[0]}.*/peers/*/1/copy.json"
        _wait_until(lambda: any(own.parent.glob(others)), 3.0)
    (home / "killed").touch()
    if how == "hang":
        time.sleep(600.0)
    if how == "node":
        os.kill(int(os.environ["FTLAUNCH_SUPERVISOR"].partition(":")[0]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _do_without_mindspore() -> None:
    """Make ftlaunch_mindspore importable without MindSpore, of which the needed modules only read the version."""
    stand_in: Any = types.ModuleType("mindspore")
    stand_in.__version__ = "none"
    sys.modules["mindspore"] = stand_in
    found = importlib.util.find_spec("ftlaunch_mindspore")
    assert found is not None
    package = types.ModuleType("ftlaunch_mindspore")
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["ftlaunch_mindspore"] = package


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2])
