"""Ranks that know of the hooks and not of torch: exit_futex.py ROLE ..., one for each; in the second attempt all end.

What happens goes to `events`, a line each: a name and the rank.
"""

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from pathlib import Path

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
ROLE = sys.argv[1 + RANK]
EVENTS = Path("events")


def happened(name: str) -> None:
    with EVENTS.open("a") as file:
        file.write(f"{name} {RANK}\n")


def count(name: str) -> int:
    return sum(line.startswith(name) for line in EVENTS.read_text().splitlines()) if EVENTS.exists() else 0


def wait(name: str, number: int) -> None:
    while count(name) < number:
        time.sleep(0.01)


def be_long_in_dying() -> None:
    """Map the same 64 MiB three hundred times: little memory, but five million pages for the kernel to unmap."""
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    memory = os.memfd_create("much")
    os.ftruncate(memory, 64 << 20)
    for _ in range(300):
        libc.mmap(None, 64 << 20, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_POPULATE, memory, 0)


def heavy(others: int) -> None:
    be_long_in_dying()
    wait("ready", others)
    happened("killed")
    os.kill(os.getpid(), signal.SIGKILL)


def count_signals() -> None:
    """Note every SIGTERM, and leave half a second after the dying rank has gone."""
    signal.signal(signal.SIGTERM, lambda *_: happened("term"))
    dying = int(Path("heavy").read_text())
    happened("ready")
    while Path(f"/proc/{dying}/stat").exists():
        time.sleep(0.01)
    time.sleep(0.5)
    sys.exit(1)


def leave() -> None:
    """As any process that is told to."""
    happened("ready")
    time.sleep(600)


def become_another() -> None:
    """Replace the program of this process by execve, so that the old program's locks are released."""
    if "AGAIN" not in os.environ:
        happened("exec")
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "AGAIN": "1"})
    time.sleep(0.5)
    happened("done")


def end_in_parts() -> None:
    """The thread in which the hooks were imported ends, then a child that was forked dies, then the process ends."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    time.sleep(0.5)
    happened("done")


if ROLE == "thread":
    importing = threading.Thread(target=lambda: __import__("ftlaunch_hooks"))
    importing.start()
    importing.join()
else:
    import ftlaunch_hooks  # noqa: F401 - takes the page

if ATTEMPT == 0:
    if ROLE == "heavy":
        Path("heavy").write_text(str(os.getpid()))
        heavy(len(sys.argv) - 2)
    elif ROLE == "counts":
        while not Path("heavy").exists() or not Path("heavy").read_text():
            time.sleep(0.01)
        count_signals()
    elif ROLE == "leaves":
        leave()
    elif ROLE == "exec":
        become_another()
    else:
        end_in_parts()
