"""The fork server: a process that has imported torch, from which the ranks of every attempt are forked.

    fork_server.py FD KIND TARGET PRELOAD WHEN LATER [ROOM]

FD: a SOCK_SEQPACKET socket to the supervisor. KIND and TARGET: what the ranks run (`script train.py`, `module
pkg.train`). PRELOAD: modules to import besides torch, with commas between them. LATER: modules to import once the
first attempt has begun (WHEN is `begun`: one has), as far as they are installed; `module:name` is a name that is
imported from one. They are modules that training scripts import without naming them (torch's optimizers import
torch._dynamo, which takes as long as torch itself), and those that this script imports at its top. ROOM: spaces, which
make this command line as long as that of a rank, which is shown in its place (shown_command.py).

The fork server says {"ready": true} or {"cannot": reason} and then, with LATER, {"complete": true}. A module of PRELOAD
that cannot be imported ends it, with a traceback on stderr. A module that is in the way of forking is said ({"without":
module, "why": reason}), as is one of LATER that cannot be imported, and the process begins anew without that module.
Each message from the supervisor brings two descriptors: an order (a file of JSON) and a gate. Each rank says `RANK PID`
at the gate and waits for SIGCONT. Ranks are the supervisor's own children, so that it reads their exit statuses: a
helper forks them and ends, and the supervisor, which is a child subreaper, inherits them.

Run as a file: where the job has a Python of its own, these hooks need not be installed in it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # torch must not find the modules of this folder under their short names

import gc
import importlib
import importlib.util
import json
import os
import select
import socket
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

_HELPERS = 2  # an attempt begins with two orders: rank 0, and the others
_QUIET = 0.3  # seconds without an order, after which an attempt has begun


def main() -> None:
    """Import torch, say so, and fork; returns only in a rank, when its script is to be run."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    kind, target, preload, when, later = sys.argv[2:7]
    rank, first_rank = _sibling("forked_rank"), _sibling("first_rank")
    pidfd_open = _pidfd_open(link)
    before = dict(os.environ)
    rank.see_modules(kind, target)
    if importlib.util.find_spec("torch") is None:
        _decline(link, "torch is not installed", quiet=True)
    gc.disable()  # the collector would take a seventh of the import's time and find next to nothing
    imported_modules = _sibling("imported_modules").ImportedModules({link.fileno()})
    asked = list(filter(None, preload.split(",")))
    for name in ("torch", *asked):
        imported_modules.load(name)
    reason, culprit = imported_modules.obstacle()
    if culprit in asked:
        link.send(json.dumps({"without": culprit, "why": reason}).encode())
        _begin_anew(link, [name for name in asked if name != culprit], when, later)
    if reason:
        _decline(link, reason)
    rank.hide_torch()
    gc.freeze()  # memory that the collector never touches is never copied
    gc.enable()
    link.send(b'{"ready": true}')
    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    order = _fork(link, asked, list(filter(None, later.split(","))), rank, pidfd_open, begun=when == "begun")
    first_rank.await_first_rank(order["env"])
    rank.become(kind, target, order["args"], {**order["env"], **imported})


def _pidfd_open(link: socket.socket) -> Callable[[int], int]:
    """What opens pidfds. Without them the end of a helper cannot be waited for: a thread would not survive a fork."""
    pidfd_open: Callable[[int], int] = _sibling("../../ftlaunch_contract/files/kernel_files").pidfd_open
    try:
        os.close(pidfd_open(os.getpid()))
    except OSError as error:
        _decline(link, f"pidfd_open(2) is refused here ({error.strerror})")
    return pidfd_open


def _sibling(name: str) -> ModuleType:
    """Load a file from beside this one: a Python without these hooks cannot import it as part of a package."""
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"_ftlaunch_{Path(name).name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _decline(link: socket.socket, reason: str, *, quiet: bool = False) -> None:
    link.send(json.dumps({"cannot": reason, "quiet": quiet}).encode())
    os._exit(0)


def _begin_anew(link: socket.socket, preload: list[str], when: str, later: str) -> NoReturn:
    """Run this program again in this process, which nothing survives but the link."""
    link.set_inheritable(True)
    given, room = sys.orig_argv[: -len(sys.argv[4:])], sys.argv[7:]
    os.execv(sys.executable, [*given, ",".join(preload), when, later, *room])  # noqa: S606 - this program itself


def _fork(
    link: socket.socket,
    preloaded: list[str],
    later: list[str],
    rank: ModuleType,
    pidfd_open: Callable[[int], int],
    *,
    begun: bool,
) -> dict[str, Any]:
    """Keep helpers ready; returns in a rank, with its order. rank: the module forked_rank.

    begun: whether an attempt has begun. Late imports wait until then: ranks that begin need the processors.
    """
    helpers = Helpers(link, pidfd_open, _sibling("fork_helper"))
    while True:
        if (order := helpers.fill()) is not None:
            return order
        if begun and later:
            rank.show_torch()
            _import_later(link, preloaded, later, helpers.files())
            rank.hide_torch()
            _sibling("huge_pages").use_huge_pages()
            helpers.relieve()
            later = []
            link.send(b'{"complete": true}')
            continue
        helpers.wait(None)
        hurry = helpers.reap()
        while not hurry and helpers.wait(_QUIET):
            hurry = helpers.reap()
        begun = begun or not hurry


class Helpers:
    """Child processes, each of which waits for one order."""

    def __init__(self, link: socket.socket, pidfd_open: Callable[[int], int], program: ModuleType) -> None:
        """program: the module fork_helper, which they run."""
        self._link, self._parent, self._open, self._program = link, os.getpid(), pidfd_open, program
        self._pidfds: dict[int, int] = {}  # by pid
        self._relieved = os.pipe()  # helpers without an order leave when it is closed

    def fill(self) -> dict[str, Any] | None:
        """Fork the helpers that are missing; returns an order only in a rank."""
        while len(self._pidfds) < _HELPERS:
            helper = os.fork()
            if helper == 0:
                self._program.die_with(self._parent)
                for fd in (self._relieved[1], *self._pidfds.values()):
                    os.close(fd)
                order: dict[str, Any] = self._program.fork_ranks(self._link, self._relieved[0], self._open)
                return order
            self._pidfds[helper] = self._open(helper)
        return None

    def files(self) -> set[int]:
        """The descriptors that this object holds."""
        return {*self._relieved, *self._pidfds.values()}

    def wait(self, seconds: float | None) -> bool:
        """Wait for the end of a helper; returns whether one has ended within so many seconds. None: wait for ever."""
        wait = select.poll()
        for pidfd in self._pidfds.values():
            wait.register(pidfd, select.POLLIN)
        return bool(wait.poll(None if seconds is None else 1000 * seconds))

    def reap(self) -> bool:
        """Forget the helpers that have ended; returns whether new ones are needed at once."""
        hurry = False
        for pid, pidfd in list(self._pidfds.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                os.close(pidfd)
                del self._pidfds[pid]
                code = os.waitstatus_to_exitcode(status)
                if code == self._program.OVER:
                    os._exit(0)
                hurry = hurry or code != 0
        return hurry

    def relieve(self) -> None:
        """End idle helpers; their replacements inherit the late imports."""
        for fd in self._relieved:
            os.close(fd)
        for pid, pidfd in self._pidfds.items():
            os.close(pidfd)
            os.waitpid(pid, 0)
        self._relieved, self._pidfds = os.pipe(), {}


def _import_later(link: socket.socket, preloaded: list[str], modules: list[str], known: Collection[int]) -> None:
    """Import the modules that are installed. One that is in the way of forking is left out, in a new beginning."""
    gc.disable()
    imported_modules, left_out = _sibling("imported_modules").ImportedModules({link.fileno(), *known}), ""
    try:
        with warnings.catch_warnings():  # a module's warning filters must not reach scripts that do not import it
            for name in modules:
                if importlib.util.find_spec(name.partition(":")[0].partition(".")[0]) is not None:
                    left_out = name
                    imported_modules.load(name)
        reason, left_out = imported_modules.obstacle()
    except Exception as error:  # noqa: BLE001 - a rank that imports the module will see its error
        reason = repr(error)
    if reason:
        without = [left_out] if left_out in modules else modules
        for name in without:
            link.send(json.dumps({"without": name, "why": reason}).encode())
        _begin_anew(link, preloaded, "begun", ",".join(name for name in modules if name not in without))
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main()
