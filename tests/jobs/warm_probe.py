"""What a rank finds when its script begins, and how it may end; for comparing forked ranks with started ones.

warm_probe.py look OUT        writes what it sees, as JSON, to OUT; with AGAIN=again in the second attempt only
warm_probe.py children OUT METHOD...   starts children in every way that is named, and writes what they answered to OUT
"""

import json
import os
import sys

SEEN_FIRST = {
    "modules": sorted({"torch", "ftlaunch_hooks"} & set(sys.modules)),
    "argv": list(sys.argv),
    "orig_argv": sys.orig_argv[1:],
    "path": list(sys.path),
    "main": {
        k: repr(v).partition(" object at ")[0]
        for k, v in globals().items()
        if k.startswith("__") and k not in ("__loader__", "__doc__")
    },
    "loader": [type(__loader__).__name__, getattr(__loader__, "name", ""), getattr(__loader__, "path", "")],
    "is_main": sys.modules["__main__"].__dict__ is globals(),
    "environ": dict(os.environ),
}

import contextlib  # noqa: E402
import ctypes  # noqa: E402
import faulthandler  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import multiprocessing  # noqa: E402
import multiprocessing.pool  # noqa: E402
import pickle  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

from ftlaunch_contract.pages.page import Page, page_path  # noqa: E402


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()])


class Kept:
    value = 7


def pid_in_page():
    """The process that has taken the page of this rank."""
    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), int(os.environ["RANK"])))
    pid = page.pid
    page.close()
    return pid


def square(number, queue=None):
    if queue is not None:
        queue.put(number * number)
    return number * number


def spawned(index, directory):
    Path(directory, f"spawned{index}").write_text(str(square(index)))


def status(name):
    lines = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return lines[name]


def open_files():
    """Where the descriptors lead that this process holds all the time: torch's threads open some for a moment."""
    held = set(links().items())
    for _ in range(10):
        time.sleep(0.01)
        held &= set(links().items())
    return sorted(re.sub(r"\d+", "N", link) for _, link in held)  # no two processes have the numbers in common


def links():
    found = {}
    for fd in range(256):
        with contextlib.suppress(FileNotFoundError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def look():
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    death = ctypes.c_int()
    libc.prctl(2, ctypes.byref(death), 0, 0, 0)
    return SEEN_FIRST | {
        "flags": repr(sys.flags),
        "executable": sys.executable,
        "c_environ": {name: (libc.getenv(name.encode()) or b"").decode() for name in os.environ},
        "umask": status("Umask"),
        "cwd": os.getcwd(),
        "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")],
        "nice": os.nice(0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "fds": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in map(str, range(3))},
        "open": open_files(),
        "handlers": {str(number): repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "kernel": {name: status(name) for name in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd", "SigPnd", "NoNewPrivs")},
        "leader": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "parent": str(os.getppid()) == os.environ["FTLAUNCH_SUPERVISOR"].partition(":")[0],
        "death": death.value,
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "main_thread": [
            threading.main_thread() is threading.current_thread(),
            threading.get_native_id() == os.getpid(),
        ],
        "streams": [
            [s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, type(s.buffer).__name__]
            for s in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "stdin": sys.stdin.read(),
        "append": os.get_blocking(1) and bool(__import__("fcntl").fcntl(1, 3) & os.O_APPEND),
        "warnings": [list(map(str, row)) for row in warnings.filters],
        "faulthandler": faulthandler.is_enabled(),
        "recursion": sys.getrecursionlimit(),
        "gc": [gc.isenabled(), gc.get_threshold()],
        "hooks": [sys.excepthook.__module__, sys.displayhook.__name__],
        "num_threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_initialized(),
        "torch": [repr(torch.__spec__.loader)[:40], torch.__spec__.name, importlib.util.find_spec("torch") is not None],
        "page": pid_in_page() == os.getpid(),
        "meta_path": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
    }


def draws():
    import numpy

    return [
        random.random(),
        torch.rand(1).item(),
        numpy.random.random(),
        multiprocessing.current_process().authkey.hex(),
    ]


def children(out, methods):
    answers = {}
    for method in methods:
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=square, args=(5, queue))
        child.start()
        answers[method] = [queue.get(timeout=60), child.join(60), child.exitcode]
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
        batches = list(loader)
        answers[f"loader {method}"] = [
            [batch[:, 0].tolist() for batch in batches],
            os.getpid() == int(batches[0][0, 1]),
        ]
    if "spawn" in methods:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            answers["pool"] = list(pool.map(square, [1, 2, 3]))
        mp.spawn(spawned, args=(str(out.parent),), nprocs=1)
        answers["torch"] = (out.parent / "spawned0").read_text()
    answers["pickle"] = [pickle.loads(pickle.dumps(Kept())).value, Kept.__module__]
    answers["compile"] = torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item()
    return answers


if __name__ == "__main__":
    what, rest = sys.argv[1], sys.argv[2:]
    if os.environ.get("AGAIN") == "again" and os.environ["FTLAUNCH_ATTEMPT"] == "0":
        signal.pause()
    answer = {"look": look, "draws": draws}[what]() if what != "children" else children(Path(rest[0]), rest[1:])
    Path(f"{rest[0]}.{os.environ['RANK']}").write_text(json.dumps(answer))
    time.sleep(0.2)
