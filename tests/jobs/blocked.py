"""Three ranks that know nothing of us, with SIGTERM handlers in Python; rank 2 is killed.

blocked.py "ROLE ROLE [OPTION]; ...": what ranks 0 and 1 are in then, see ROLES; `init`: in init_process_group. The
first entry is of attempt 0, the next of attempt 1, and so on; after the last, nothing happens.
OPTION: `default`, without handlers; `preempted`, rank 2 dies of SIGTERM. `events_<attempt>` says what happened:
`killed 2`, `handled RANK`, `saved RANK`.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
WORDS = dict(enumerate(sys.argv[1].split("; "))).get(ATTEMPT, "").split()
STRIKES = bool(WORDS)
ROLE = [*(WORDS[:2] or ["none", "none"]), "dies"][RANK]
OPTION = "".join(WORDS[2:])
torch.set_num_threads(1)


def note(line: str) -> None:
    with open(f"events_{ATTEMPT}", "a") as file:
        file.write(f"{line}\n")


def on_term(signum: int, frame: Any) -> None:
    note(f"handled {RANK}")
    if ROLE == "flag":
        return  # as Lightning and Megatron: at the end of the step it will be looked at
    if ROLE == "save":
        with open("checkpoint", "w") as file:
            for part in range(15):
                file.write(f"{part}\n")
                time.sleep(0.1)
        note(f"saved {RANK}")
    sys.exit(0)


def compute(seconds: float) -> None:
    """One call in C that no signal interrupts, so that no handler runs meanwhile."""
    mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    threading.Timer(seconds, library.pthread_mutex_unlock, (mutex,)).start()
    library.pthread_mutex_lock(mutex)


def with_the_dead() -> None:
    """Waits in the store for a rank that will not come: no connection is closed that would tell."""
    dist.new_group([RANK, 2], use_local_synchronization=True)


def backward() -> None:
    model(torch.ones(2)).sum().backward()  # rank 1 does not


def flag() -> None:
    compute(1.5)
    with_the_dead()


def wait_for_sleepers(pids: list[int]) -> None:
    """They enter what they are to be in: their main threads sleep, and use no processor time, ten looks long."""
    seen, same = [], 0
    while same < 10:
        time.sleep(0.03)
        now = [Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        times = [(fields[11], fields[12]) for fields in now]
        same = same + 1 if times == seen and all(fields[0] == "S" for fields in now) else 0
        seen = times


def ready() -> None:
    """Says so under a name that appears with its contents."""
    written = Path(f"{RANK}.written")
    written.write_text(str(os.getpid()))
    written.rename(f"ready_{ATTEMPT}_{RANK}")


def dies() -> None:
    while len(here := list(Path().glob(f"ready_{ATTEMPT}_*"))) < 3:
        time.sleep(0.01)
    wait_for_sleepers([int(path.read_text()) for path in here if not path.name.endswith("_2")])
    note("killed 2")
    os.kill(os.getpid(), signal.SIGTERM if OPTION == "preempted" else signal.SIGKILL)


ROLES = {
    "store": with_the_dead,
    "reduce": lambda: dist.all_reduce(torch.ones(1), group=pair),  # rank 1 does not
    "backward": backward,
    "model": with_the_dead,  # has the model of rank 0's backward pass
    "save": lambda: time.sleep(1000),
    "compute": lambda: compute(3.5),
    "flag": flag,
    "dies": dies,
}

if OPTION != "default" and ROLE != "dies":
    signal.signal(signal.SIGTERM, on_term)
if "init" in WORDS:
    ready()
    if RANK == 2:
        dies()
dist.init_process_group("gloo")
pair = dist.new_group([0, 1])
if STRIKES:
    if ROLE in ("backward", "model"):
        model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=pair)
    ready()
    ROLES[ROLE]()
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
time.sleep(0.2)  # torch 2.13 aborts when the interpreter ends within milliseconds of the last collective
