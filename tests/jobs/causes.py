"""A rank without torch and without a training loop of its own: it fails as FAULT says.

causes.py STEPS: so many empty steps. FAULT="KIND RANK STEP [ATTEMPTS]; ...": in the first so many attempts (1) that
rank fails so in the body of that step, in those after them as the next entry says. Every fault leaves a line in
`fired`. STEP -1 is before the first beat. HELD=1: every step's snapshot is said to be in memory (its bytes are not).
"""

import atexit
import ctypes
import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ftlaunch_contract.pages.page import open_pages
from ftlaunch_contract.protocol import SLOTS, Flag, Phase, Resume
from ftlaunch_hooks.process.bootstrap import own_page

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["FTLAUNCH_ATTEMPT"])


def planned() -> list[tuple[str, int, int]]:
    """Kind, rank and step of the fault of each attempt."""
    plan = []
    for entry in os.environ["FAULT"].split(";"):
        kind, rank, step, *attempts = entry.split()
        plan += [(kind, int(rank), int(step))] * int(*attempts or [1])
    return plan


KIND, AT_RANK, AT_STEP = dict(enumerate(planned())).get(ATTEMPT, ("none", -1, -1))


class Failed(Exception):
    """An error that no rule knows."""


def in_a_thread() -> None:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


class DistBackendError(RuntimeError):
    """An error with the name of torch's error of a process group's backend."""


def error(number: int, *more: str) -> None:
    raise OSError(number, os.strerror(number), *more)


def crash(signum: int) -> None:
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    time.sleep(10)


def together(*ranks: int) -> None:
    """These ranks die within a millisecond, this one last."""
    for rank in ranks:
        if rank != RANK:
            os.kill(peers[rank].pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def uninterruptible() -> None:
    """State D: whoever makes a child by vfork sleeps so until that has called exec, here after opening a pipe."""
    os.mkfifo(f"fifo_{ATTEMPT}")
    wait = (os.POSIX_SPAWN_OPEN, 0, f"fifo_{ATTEMPT}", os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[wait])


def spin_and_beat() -> None:
    """It lives, it says so, it makes no step."""
    while True:
        page.beat(AT_STEP, page.beat_ns)


def eat() -> None:
    """All the memory there is, as fast as it goes."""
    held = []
    while True:
        held.append(bytearray(8 << 20))


def rubbish(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.flush()
    sys.exit(17)


def much() -> None:
    """100 MB without a newline."""
    for _ in range(100):
        sys.stdout.buffer.write(b"x" * (1 << 20))
    sys.stdout.flush()
    sys.exit(17)


def late_exit() -> None:
    """Everything is done, and the interpreter on its way out."""
    atexit.register(os._exit, 3)
    page.raise_flag(Flag.LOOP_LEFT)
    sys.exit(0)


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
        while ") Z " not in Path(f"/proc/{peers[1 - RANK].pid}/stat").read_text():
            time.sleep(0.01)
        os.kill(supervisor, signal.SIGCONT)
        os._exit(0)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711")


FAULTS = {
    "name": lambda: raise_(NameError("name 'modle' is not defined")),
    "arguments": lambda: (print("causes.py: error: unrecognized arguments: --lrr"), sys.exit(2)),
    "import": lambda: __import__("nothing_of_that_name"),
    "syntax": lambda: compile("x = = 1", "model.py", "exec"),
    "tensor": lambda: raise_(RuntimeError("shape '[4]' is invalid for input of size 6")),
    "key": lambda: {}["missing"],
    "files": lambda: error(errno.EMFILE),
    "unicode": lambda: raise_(Failed("\ud800 \x1b[31m")),
    "keyboard": lambda: os.kill(os.getpid(), signal.SIGINT),
    "keyboard-forgotten": lambda: (atexit.register(lambda: eval("None")), os.kill(os.getpid(), signal.SIGINT)),
    "io": lambda: error(errno.EIO, "shard-17.bin"),
    "quota": lambda: error(errno.EDQUOT),
    "stale": lambda: error(errno.ESTALE),
    "memory": lambda: raise_(MemoryError()),
    "enomem": lambda: error(errno.ENOMEM),
    "alloc": lambda: raise_(RuntimeError("std::bad_alloc")),
    "shm": lambda: raise_(RuntimeError("unable to write to file </torch_77_1>: No space left on device (28)")),
    "eat": eat,
    "torch-oom": lambda: raise_(OutOfMemoryError("Tried to allocate 2.00 GiB")),
    "illegal": lambda: raise_(RuntimeError("CUDA error: an illegal memory access was encountered")),
    "nvlink": lambda: raise_(RuntimeError("CUDA error: uncorrectable NVLink error detected during the execution")),
    "cudnn": lambda: raise_(RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")),
    "nccl": lambda: raise_(DistBackendError("NCCL error: unhandled system error")),
    "gloo": lambda: raise_(RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms")),
    "port": lambda: raise_(RuntimeError("The server socket has failed to bind. EADDRINUSE, address already in use")),
    "float": lambda: raise_(FloatingPointError("invalid value encountered in multiply")),
    "preemption": lambda: (print("*** JOB CANCELLED DUE TO PREEMPTION ***"), sys.exit(1)),
    "worker": lambda: raise_(RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed.")),
    "segv": lambda: crash(signal.SIGSEGV),
    "abort": os.abort,
    "bus": lambda: crash(signal.SIGBUS),
    "fpe": lambda: crash(signal.SIGFPE),
    "ill": lambda: crash(signal.SIGILL),
    "usr1": lambda: crash(signal.SIGUSR1),
    "early": lambda: sys.exit(0),
    "really-early": lambda: os._exit(0),
    "late-exit": late_exit,
    "shell-kill": lambda: sys.exit(137),
    "two": lambda: together(0, 1),
    "rubbish": lambda: rubbish(bytes(range(256)) * 4000),
    "escape": lambda: rubbish(b"\x1b]0;owned\x07\x1b[2J\x1b[31mred"),
    "much": much,
    "gil": lambda: [ctypes.PyDLL(None).sleep(1000) for _ in range(1000)],  # a signal ends one, as that for the stacks
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "spin": spin_and_beat,
    "uninterruptible": uninterruptible,
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
    if (RANK, step) == (AT_RANK, AT_STEP):
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
while any(peer.attempt != page.attempt for peer in peers):  # what such a page says is of the attempt before
    time.sleep(0.001)
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
