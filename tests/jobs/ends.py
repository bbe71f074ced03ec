"""Makes a few steps and ends as END says, on rank AT in attempt 0: `ends.py OUT (attached|observed)`.

abort, segv: a function that libc calls when Python is gone crashes. abort-3, abort-0: the same behind sys.exit(3) and
sys.exit(0). early: an atexit function of Python's aborts. left: the process group is left behind. pending: a collective
that no other rank joins is left behind, while the other rank waits for this rank's end. gone: it waits for the other's.
late: all ranks end well once the supervisor has taken them for hanging.
"""

import atexit
import ctypes
import os
import sys
import time
from pathlib import Path

RANK, FIRST = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
END = os.environ["END"]
HERE = FIRST and int(os.environ["AT"]) == RANK
if END == "early" and HERE:
    atexit.register(os.abort)  # before the hooks register anything: it is called after them

import quick  # noqa: E402, F401 - before torch
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

out, how = Path(sys.argv[1]), sys.argv[2]
out.mkdir(parents=True, exist_ok=True)


class Witness:
    """Notes the threads that are left when Python takes the main module apart."""

    def __del__(self, listdir=os.listdir, opened=open, file=f"{out}/threads_{RANK}") -> None:
        names = []
        for task in listdir("/proc/self/task"):
            with opened(f"/proc/self/task/{task}/comm") as comm:
                names.append(comm.read().strip())
        with opened(file, "w") as seen:
            seen.write(" ".join(sorted(names)))


def crash_when_python_is_gone(address: int | None) -> None:
    libc = ctypes.CDLL(None)
    assert libc.on_exit(ctypes.c_void_p(address), None) == 0


def wait_for_the_end_of(rank: int) -> None:
    path = out / f"pid_{rank}"
    while not path.exists() or Path(f"/proc/{path.read_text()}").exists():
        time.sleep(0.01)


(out / f"pid_{RANK}.new").write_text(str(os.getpid()))
(out / f"pid_{RANK}.new").rename(out / f"pid_{RANK}")
if END in ("left", "pending", "gone"):
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if how == "attached":
    import ftlaunch_hooks as ft

    job = ft.attach(model=model, optimizer=optimizer)
    steps = job.steps(5)
else:
    steps = iter(range(5))
for _ in steps:
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
with (out / f"trained_{RANK}").open("a") as file:
    file.write("once\n")
witness = Witness()
if END == "pending" and HERE:
    dist.all_reduce(torch.ones(1), async_op=True)
elif END == "pending" and FIRST:
    wait_for_the_end_of(int(os.environ["AT"]))
if END == "late":
    journal = Path(os.environ["FTLAUNCH_RUN_DIR"]) / "events.jsonl"
    while '"hang_seen"' not in journal.read_text():
        time.sleep(0.005)
    os._exit(0)  # at once: before the stacks of this process are taken
if END == "gone" and HERE:
    wait_for_the_end_of(1 - RANK)
if HERE:
    if END.startswith("abort"):
        crash_when_python_is_gone(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    if END == "segv":
        crash_when_python_is_gone(1)
    if END[-1].isdigit():
        sys.exit(int(END[-1]))
