"""Answers questions of `ftctl check` about the interpreter that the ranks will run in, as one JSON object in OUT.

    preflight_probe.py facts OUT     Python, torch and its devices
    preflight_probe.py rank OUT      as one rank of a group: the times of a matrix product and of an all_reduce

Run as a file: where the job has a Python of its own, these hooks need not be installed in that Python.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # torch must not find the modules of this folder under their short names

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROUNDS = 10
_SIDE_CPU = 1024  # rows and columns of the matrices on a CPU
_SIDE_GPU = 4096  # rows and columns of the matrices on a GPU
_REDUCED = 1 << 20  # float32 values in an all_reduce: 4 MiB
_SMI = "name,driver_version,memory.total,memory.free"


def facts() -> dict[str, Any]:
    """Return facts about Python, torch and devices.

    Returns:
        `python` (version), `executable`, `driver` (lines of nvidia-smi, or None), `torch` (version, or None), `why`
        (reason for missing facts, or ""), and with torch `cuda` (version, or None) and `devices` (for each its `name`,
        `free` and `total` bytes).
    """
    found: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable, "driver": _driver()}
    try:
        import torch  # noqa: PLC0415 - the check asks whether it is missing or broken
    except (ImportError, OSError) as error:
        return {**found, "torch": None, "why": f"{type(error).__name__}: {error}"}
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": [], "why": ""}
    try:
        for number in range(torch.accelerator.device_count()):
            module = torch.get_device_module(torch.accelerator.current_accelerator())
            free, total = module.mem_get_info(number)
            found["devices"].append({"name": module.get_device_name(number), "free": free, "total": total})
    except RuntimeError as error:
        found["why"] = str(error).strip().splitlines()[0]
    return found


def _driver() -> list[str] | None:
    """Return nvidia-smi's output, a line for each GPU; None if there is no such program."""
    command = ["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"nvidia-smi gives no answer ({type(error).__name__})"]
    return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip().splitlines()


def rank() -> dict[str, Any]:
    """Time a matrix product and an all_reduce as one rank of a group.

    Returns:
        `rank`, `device`, `product` and `all_reduce` (seconds, the best of some rounds each), and `right` (whether every
        sum was right).
    """
    _say("imports torch")
    import torch  # noqa: PLC0415 - as above
    from torch import distributed  # noqa: PLC0415

    device = torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.is_available():
        device = accelerator
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    side = _SIDE_CPU if device.type == "cpu" else _SIDE_GPU
    matrix = torch.ones(side, side, device=device)

    def multiply() -> None:
        # Reading a value waits for the device.
        assert torch.mm(matrix, matrix)[0, 0].item() == side, "a matrix product is wrong"

    own_rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    _say("waits for the other ranks")
    distributed.init_process_group("gloo")
    distributed.barrier()
    values = torch.empty(_REDUCED, device="cpu")
    right = []

    def reduce() -> None:
        values.fill_(own_rank + 1)
        distributed.all_reduce(values)
        right.append(bool((values == world * (world + 1) // 2).all()))

    _say("multiplies")
    product = _best(multiply)
    _say("reduces")
    distributed.barrier()
    reduced = _best(reduce)
    distributed.barrier()
    distributed.destroy_process_group()
    return {"rank": own_rank, "device": device.type, "product": product, "all_reduce": reduced, "right": all(right)}


def _say(doing: str) -> None:
    """Log what this rank does, for a reader who finds that the rank does not answer."""
    sys.stderr.write(f"{doing}\n")
    sys.stderr.flush()


def _best(work: Callable[[], None]) -> float:
    """Return the seconds of the fastest round, which other programs slow down least. The first round is left out."""
    work()
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    """Run the mode that the command line names, and write its answer, which appears whole or not at all."""
    mode = sys.argv[1]
    out = Path(sys.argv[2])
    answer = facts() if mode == "facts" else rank()
    new = out.with_suffix(".new")
    new.write_text(json.dumps(answer))
    new.rename(out)


if __name__ == "__main__":
    main()
