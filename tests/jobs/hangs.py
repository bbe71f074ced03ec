"""A tiny gloo job that hangs in the ways it is told to, on the rank it is told to.

hangs.py "HOW; ..." RANK STEP: the first way is of attempt 0, the next of attempt 1, and so on. Every step is an
all_reduce and a step of an optimizer. `fired` says that it hung. Lines that tests look for carry a mark: `# HERE` and
its name.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import ftlaunch_hooks as ft

STRUCK, AT, STEPS = int(sys.argv[2]), int(sys.argv[3]), 8
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
HOW = dict(enumerate(sys.argv[1].split("; "))).get(ATTEMPT, "")
torch.set_num_threads(1)


def fired() -> None:
    with open("fired", "a") as file:
        file.write(f"{HOW} {RANK}\n")


class Data(Dataset):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, number: int) -> torch.Tensor:
        if HOW == "loader" and STRUCK == RANK and number == AT:
            fired()
            time.sleep(1000)  # HERE in the worker
        return torch.ones(4)


def spin() -> None:
    number = 0
    while True:
        number += 1


def lock_and_collective() -> None:
    lock, taken = threading.Lock(), threading.Event()

    def holder() -> None:
        with lock:
            taken.set()
            dist.barrier()  # HERE the holder

    threading.Thread(target=holder, daemon=True).start()
    taken.wait()
    with lock:  # HERE the lock
        pass


kept: list[socket.socket] = []


def cut_the_wire() -> None:
    """Every TCP connection becomes a hole: what is written goes nowhere. None is closed: that would be heard."""
    hole, other = socket.socketpair()
    hole.setblocking(False)
    other.detach()
    for name in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(name)))
            kept.append(found)
            connected = found.family in (socket.AF_INET, socket.AF_INET6) and found.getpeername()
        except OSError:
            connected = False
        if connected:
            os.dup2(hole.fileno(), int(name))
    hole.detach()


def wait_on_a_pipe() -> None:
    os.read(os.pipe()[0], 1)  # HERE the pipe


def hold_the_gil() -> None:
    mutex, library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # PyDLL keeps the lock over the call
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # HERE the GIL


def other_group() -> None:
    dist.all_reduce(torch.ones(1), group=first if RANK else second)  # HERE the groups


HANGS = {
    "sleep": lambda: time.sleep(1000),  # HERE sleep
    "spin": spin,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),  # HERE stop
    "gil": hold_the_gil,
    "lock": lock_and_collective,
    "mismatch": dist.barrier,
    "cut": cut_the_wire,
    "pipe": wait_on_a_pipe,
}

if HOW == "startup" and RANK == STRUCK:
    fired()
    time.sleep(1000)  # HERE startup
if os.environ.get("LINGERS") == str(RANK) and not ATTEMPT:  # as its interpreter ends, until a signal ends it
    ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).pause)
TIMEOUT = timedelta(seconds=float(os.environ.get("COLLECTIVE_TIMEOUT", "1800")))
dist.init_process_group("gloo", timeout=TIMEOUT)  # HERE init
first, second = dist.new_group(), dist.new_group()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)
data = iter(DataLoader(Data(), batch_size=1, num_workers=1 if HOW == "loader" else 0))
for step in job.steps(STEPS):
    batch = next(data)  # HERE the loader
    if step == AT and HOW in ("cut", "groups"):
        dist.barrier()
        fired()
        other_group() if HOW == "groups" else cut_the_wire()
    elif (step, RANK) == (AT, STRUCK) and HOW in HANGS:
        fired()
        HANGS[HOW]()  # HERE the hang
    elif (step, RANK) == (AT, STRUCK) and HOW == "leave":
        fired()
        break
    dist.all_reduce(batch)  # HERE all_reduce
    optimizer.step()
    time.sleep(0.15)  # more than the supervisor's tick: it is to see steps being made
if HOW == "leave" and RANK == STRUCK:
    threading.Event().wait()  # HERE after the loop
dist.destroy_process_group()
time.sleep(0.2)  # torch 2.13 aborts when the interpreter ends within milliseconds of the last collective
