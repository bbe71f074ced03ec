"""The warm parent: a process that has torch imported, from which the ranks of every attempt are forked.

    warm.py FD KIND TARGET PRELOAD

FD: a SOCK_SEQPACKET socket to the supervisor. KIND and TARGET: what the ranks run (`script train.py`, `module
pkg.train`). PRELOAD: modules to import besides torch, with commas between them. It says {"ready": true} or {"cannot":
reason}; a module that cannot be imported ends it, with a traceback on stderr. Each message from the supervisor
brings two descriptors, an order (a file of JSON) and a gate, and each rank says `RANK PID` at the gate and waits for
SIGCONT. The ranks are the supervisor's own children, so that it reads their exit statuses: a helper forks them and
ends, and the supervisor, which is a child subreaper, inherits them.

Run as a file: where the job has a Python of its own, these hooks need not be installed in it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # names such as `data` and `signals` in here are not for torch to find

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1
_HELPERS = 2  # an attempt begins with two orders: rank 0, and the others
_OVER = 3  # exit code of a helper: the supervisor is gone


def main() -> None:
    """Import, say so, and fork; returns only in a rank, once its script is to be run."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    kind, target, preload = sys.argv[2:5]
    rank = _sibling("warm_rank")
    before = dict(os.environ)
    rank.see_modules(kind, target)
    if importlib.util.find_spec("torch") is None:
        _decline(link, "torch is not installed", quiet=True)
    for name in ("torch", *filter(None, preload.split(","))):
        importlib.import_module(name)
    reason = _unfit(link)
    if reason:
        _decline(link, reason)
    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.collect()
    gc.freeze()  # what is never looked at by the collector is never copied
    link.send(b'{"ready": true}')
    order = _fork(link)
    rank.become(kind, target, order["args"], {**order["env"], **imported})


def _sibling(name: str) -> ModuleType:
    """A file beside this one, which is no package's to a Python without these hooks."""
    spec = importlib.util.spec_from_file_location(f"_ftlaunch_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _decline(link: socket.socket, reason: str, *, quiet: bool = False) -> None:
    link.send(json.dumps({"cannot": reason, "quiet": quiet}).encode())
    os._exit(0)


def _unfit(link: socket.socket) -> str:
    """Why no rank can be forked from this process; empty when they can."""
    import torch  # noqa: PLC0415 - it is what takes a second

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "a module initialises CUDA when it is imported, and CUDA does not survive a fork"
    # A fork on trial: CUDA knows of forks before it is initialised, and OpenBLAS ends its threads for each.
    spoilt = getattr(torch.cuda, "_is_in_bad_fork", bool)
    trial = os.fork()
    if trial == 0:
        os._exit(int(spoilt()))
    if os.waitpid(trial, 0)[1] != 0:
        return "a module asks CUDA for its devices when it is imported, and CUDA does not survive a fork after that"
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"a module starts a thread when it is imported ({threads - 1} run), and threads do not survive a fork"
    files = _open_files() - {0, 1, 2, link.fileno()}
    if files:
        names = ", ".join(sorted(str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in files))
        return f"a module leaves files open when it is imported, which ranks would share: {names}"
    return ""


def _open_files() -> set[int]:
    listed = list(Path("/proc/self/fd").iterdir())
    return {int(path.name) for path in listed if path.is_symlink()}  # without that of the listing


def _fork(link: socket.socket) -> dict[str, Any]:
    """Keep helpers ready that wait for an order each; returns in a rank, with what it is to be."""
    parent, helpers = os.getpid(), set[int]()
    while True:
        while len(helpers) < _HELPERS:
            helper = os.fork()
            if helper == 0:
                _die_with(parent)
                return _help(link)
            helpers.add(helper)
        ended, status = os.wait()
        helpers.discard(ended)
        if os.waitstatus_to_exitcode(status) == _OVER:
            os._exit(0)


def _help(link: socket.socket) -> dict[str, Any]:
    """Wait for one order, fork its ranks, end; returns in a rank."""
    message, received, _, _ = socket.recv_fds(link, 16, 2)
    if not message:
        os._exit(_OVER)
    link.close()
    with open(received[0], "rb") as file:  # noqa: PTH123 - a descriptor
        order = json.load(file)
    gate = socket.socket(fileno=received[1])
    me = os.pidfd_open(os.getpid())
    for number, own in enumerate(order["ranks"]):
        if os.fork() == 0:
            os.setsid()
            _wait_for_end(me)
            _die_with(order["supervisor"])
            _use_log(own["log"])
            _pass(gate, number)
            return {"args": order["args"], "env": {**order["env"], **own["env"]}}
    os._exit(0)


def _die_with(parent: int) -> None:
    """SIGKILL at the end of `parent`, whose child this is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _wait_for_end(pidfd: int) -> None:
    """Wait for the helper's end: from then on this process is the supervisor's child."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os.close(pidfd)


def _use_log(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _pass(gate: socket.socket, number: int) -> None:
    """Tell the supervisor who this is, and go on when it says so; it may have given up waiting."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    try:
        gate.send(f"{number} {os.getpid()}".encode())
    except OSError:
        os._exit(1)
    gate.close()
    signal.sigwait({signal.SIGCONT})
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


if __name__ == "__main__":
    main()
