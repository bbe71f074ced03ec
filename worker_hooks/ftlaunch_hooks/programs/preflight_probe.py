"""What `ftctl check` asks of the interpreter that the ranks will run in; one JSON object into the file named.

    preflight_probe.py facts OUT     Python, torch and its devices
    preflight_probe.py rank OUT      as one rank of a group: how long a matrix product and an all_reduce take

Run as a file: where the job has a Python of its own, these hooks need not be installed in it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: torch must not find its modules under their short names

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROUNDS = 10
_SIDE_CPU, _SIDE_GPU = 1024, 4096  # of the matrices
_REDUCED = 1 << 20  # float32 values: 4 MiB
_SMI = "name,driver_version,memory.total,memory.free"


def facts() -> dict[str, Any]:
    """Python, torch, devices."""
    found: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable, "driver": _driver()}
    try:
        import torch  # noqa: PLC0415 - the check asks whether it is missing or broken
    except (ImportError, OSError) as error:
        return {**found, "torch": None, "why": f"{type(error).__name__}: {error}"}
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": [], "why": ""}
    try:
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            found["devices"].append({"name": torch.cuda.get_device_name(number), "free": free, "total": total})
    except RuntimeError as error:
        found["why"] = str(error).strip().splitlines()[0]
    return found


def _driver() -> list[str] | None:
    """What nvidia-smi says, a line for each GPU; None where there is no such program."""
    command = ["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"nvidia-smi gives no answer ({type(error).__name__})"]
    return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip().splitlines()


def rank() -> dict[str, Any]:
    """Seconds of a matrix product and of an all_reduce, the best of some rounds each, and whether it added up."""
    _say("imports torch")
    import torch  # noqa: PLC0415 - as above
    from torch import distributed  # noqa: PLC0415

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    side = _SIDE_GPU if device == "cuda" else _SIDE_CPU
    matrix = torch.ones(side, side, device=device)

    def multiply() -> None:
        # To read one value waits for the device.
        assert torch.mm(matrix, matrix)[0, 0].item() == side, "a matrix product is wrong"

    me, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _say("waits for the other ranks")
    distributed.init_process_group("gloo")
    distributed.barrier()
    values = torch.empty(_REDUCED, device="cpu")
    right = []

    def reduce() -> None:
        values.fill_(me + 1)
        distributed.all_reduce(values)
        right.append(bool((values == world * (world + 1) // 2).all()))

    _say("multiplies")
    product = _best(multiply)
    _say("reduces")
    distributed.barrier()
    reduced = _best(reduce)
    distributed.barrier()
    distributed.destroy_process_group()
    return {"rank": me, "device": device, "product": product, "all_reduce": reduced, "right": all(right)}


def _say(doing: str) -> None:
    """Say what this rank does; the log is read when the rank does not answer."""
    sys.stderr.write(f"{doing}\n")
    sys.stderr.flush()


def _best(work: Callable[[], None]) -> float:
    """Seconds of the fastest of some rounds, without the first one: the fastest suffers least from other programs."""
    work()
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    """Do what the command line says; the answer appears whole or not at all."""
    what, out = sys.argv[1], Path(sys.argv[2])
    answer = facts() if what == "facts" else rank()
    new = out.with_suffix(".new")
    new.write_text(json.dumps(answer))
    new.rename(out)


if __name__ == "__main__":
    main()
