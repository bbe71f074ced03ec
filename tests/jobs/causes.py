"""A rank without torch and without a training loop of its own: it fails as FAULT says.

causes.py STEPS: so many empty steps. FAULT="KIND RANK STEP [ATTEMPTS]": that rank fails so, in the body of that step,
in the first so many attempts (1). Every fault leaves a line in `fired`. STEP -1 is before the first beat. HELD=1: every
step's snapshot is said to be in memory (its bytes are not).
"""

import errno
import os
import signal
import sys
import threading
import time

from ftlaunch_hooks.bootstrap import own_page
from ftlaunch_hooks.page import open_pages
from ftlaunch_hooks.protocol import SLOTS, Flag, Phase, Resume

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["FTLAUNCH_ATTEMPT"])
KIND, *WHERE = os.environ["FAULT"].split()
AT_RANK, AT_STEP, ATTEMPTS = [int(word) for word in [*WHERE, "1"]][:3]


class Failed(Exception):
    """An error that no rule knows."""


def in_a_thread() -> None:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()


def in_a_fork() -> None:
    if os.fork() == 0:
        raise Failed("in a child")
    os.wait()
    sys.exit(3)


def raise_(error: BaseException) -> None:
    raise error


def hide() -> None:
    """The traceback is in no log."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise Failed("behind the curtain")


def chained() -> None:
    try:
        raise OSError(errno.ENOSPC, "No space left on device", "model.pt")
    except OSError as error:
        raise Failed("cannot save") from error


def victim() -> None:
    """Like a collective: it fails because of another rank, which is gone only later; both ends are seen at once."""
    supervisor, rank = os.getppid(), os.getpid()
    os.kill(supervisor, signal.SIGSTOP)
    if os.fork() == 0:
        while os.getppid() == rank:
            time.sleep(0.01)
        os.kill(peers[1 - RANK].pid, signal.SIGKILL)
        time.sleep(0.2)
        os.kill(supervisor, signal.SIGCONT)
        os._exit(0)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711")


FAULTS = {
    "name": lambda: raise_(NameError("name 'modle' is not defined")),
    "arguments": lambda: (print("causes.py: error: unrecognized arguments: --lrr"), sys.exit(2)),
    "failed": lambda: raise_(Failed("odd")),
    "hidden": hide,
    "chained": chained,
    "nan": lambda: raise_(ValueError(f"loss is nan at step {AT_STEP}")),
    "disk": lambda: raise_(OSError(errno.EROFS, "Read-only file system")),
    "cuda": lambda: raise_(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")),
    "ecc": lambda: raise_(RuntimeError("CUDA error: uncorrectable ECC error encountered")),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda: (signal.signal(signal.SIGTERM, signal.SIG_DFL), os.kill(os.getpid(), signal.SIGTERM)),
    "exit": lambda: sys.exit(17),
    "switch": lambda: (print("eth4: link is down"), sys.exit(17)),
    "sleep": lambda: time.sleep(1000),
    "fork": in_a_fork,
    "thread": in_a_thread,
    "victim": victim,
}


def fault(step: int) -> None:
    if (RANK, step) == (AT_RANK, AT_STEP) and ATTEMPT < ATTEMPTS:
        with open("fired", "a") as file:
            file.write(f"{KIND} {RANK} {ATTEMPT}\n")
        FAULTS[KIND]()


page = own_page()
fault(-1)
while page.resume[0] == Resume.UNDECIDED:
    time.sleep(0.001)
kind, step = page.resume
page.set_resumed(kind, step)
page.beat(step, time.monotonic_ns())
page.raise_flag(Flag.ATTACHED)
page.phase = Phase.TRAIN
peers = open_pages(page.path.parent, int(os.environ["WORLD_SIZE"]))
while step < int(sys.argv[1]):
    fault(step)
    time.sleep(0.02)
    step += 1
    if "HELD" in os.environ:
        page.set_slot(step % SLOTS, step)
    page.step_seconds = 0.02
    page.beat(step, time.monotonic_ns())
    while any(peer.step < step for peer in peers):  # as collectives would have it
        time.sleep(0.001)
page.raise_flag(Flag.LOOP_LEFT)
