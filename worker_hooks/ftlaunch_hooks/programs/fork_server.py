"""The fork server: a process that has imported torch, from which the ranks of every attempt are forked.

    fork_server.py FD KIND TARGET PRELOAD WHEN LATER [ROOM]

FD: a SOCK_SEQPACKET socket to the supervisor.
KIND, TARGET: the program of the ranks (`script train.py`, `module pkg.train`).
PRELOAD: modules to import besides torch, separated by commas.
WHEN: `begun` if an attempt has begun already.
LATER: modules to import once the first attempt has begun, as far as they are installed; `module:name` imports a name
    from a module. They are modules that training scripts import without naming them (torch's optimizers import
    torch._dynamo, which takes as long as torch itself), and modules that the job's script imports at its top.
ROOM: spaces. They make this command line as long as a rank's, which is shown in its place (shown_command.py).

The fork server sends {"ready": true} or {"cannot": reason} and then, with LATER, {"complete": true}. If a module of
PRELOAD cannot be imported, the process ends with a traceback on stderr. If a module prevents forking, or a module of
LATER cannot be imported, the process sends {"without": module, "why": reason} and restarts without this module.

Each message from the supervisor brings two descriptors: an order (a file of JSON) and a gate (a socket). Each rank
sends `RANK PID` to the gate and waits for SIGCONT. The supervisor reads the ranks' exit statuses, so they have to be
its own children: a helper forks them and ends, and the supervisor, a child subreaper, inherits them.

Run as a file: where the job has a Python of its own, these hooks need not be installed in that Python.
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
_QUIET_SECONDS = 0.3  # time without an order, after which an attempt has begun


def main() -> None:
    """Import torch, report that to the supervisor, and fork ranks. In a rank, run its script."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    kind, target, preload, when, later = sys.argv[2:7]
    rank = _sibling("forked_rank")
    first_rank = _sibling("first_rank")
    pidfd_open = _pidfd_open(link)
    before = dict(os.environ)
    rank.see_modules(kind, target)
    if importlib.util.find_spec("torch") is None:
        _decline(link, "torch is not installed", quiet=True)
    gc.disable()  # the collector would take a seventh of the import's time and find almost nothing
    imported_modules = _sibling("imported_modules").ImportedModules({link.fileno()})
    asked = list(filter(None, preload.split(",")))
    for name in ("torch", *asked):
        imported_modules.load(name)
    reason, culprit = imported_modules.obstacle()
    if culprit in asked:
        link.send(json.dumps({"without": culprit, "why": reason}).encode())
        _restart(link, preload=[name for name in asked if name != culprit], when=when, later=later)
    if reason:
        _decline(link, reason)
    rank.hide_torch()
    gc.freeze()  # memory that the collector never touches is never copied
    gc.enable()
    link.send(b'{"ready": true}')
    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    order = _serve(
        link,
        preloaded=asked,
        later=list(filter(None, later.split(","))),
        rank=rank,
        pidfd_open=pidfd_open,
        begun=when == "begun",
    )
    first_rank.await_first_rank(order["env"])
    rank.become(kind, target, args=order["args"], env={**order["env"], **imported})


def _pidfd_open(link: socket.socket) -> Callable[[int], int]:
    """Return the function that opens pidfds. Decline, which ends this process, if the system refuses pidfds.

    The end of a helper can only be awaited by a pidfd, as a thread that waits would not survive a fork.
    """
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
    """Tell the supervisor why ranks cannot be forked, and end this process. quiet: the reason is not for the user."""
    link.send(json.dumps({"cannot": reason, "quiet": quiet}).encode())
    os._exit(0)


def _restart(link: socket.socket, preload: list[str], when: str, later: str) -> NoReturn:
    """Run this program again in this process, with other arguments. Only the link survives."""
    link.set_inheritable(True)
    unchanged = sys.orig_argv[: -len(sys.argv[4:])]
    room = sys.argv[7:]
    os.execv(sys.executable, [*unchanged, ",".join(preload), when, later, *room])  # noqa: S606 - this program itself


def _serve(
    link: socket.socket,
    preloaded: list[str],
    later: list[str],
    rank: ModuleType,
    pidfd_open: Callable[[int], int],
    *,
    begun: bool,
) -> dict[str, Any]:
    """Keep helpers ready for orders. Return only in a rank.

    Args:
        link: the socket to the supervisor.
        preloaded: the modules imported besides torch.
        later: the modules to import once an attempt has begun; ranks that are starting need the processors.
        rank: the module forked_rank.
        pidfd_open: opens a pidfd of a process.
        begun: whether an attempt has begun.

    Returns:
        The rank's order.
    """
    helpers = Helpers(link, pidfd_open, _sibling("fork_helper"))
    while True:
        if (order := helpers.fill()) is not None:
            return order
        if begun and later:
            rank.show_torch()
            _import_late_modules(link, preloaded=preloaded, modules=later, known=helpers.files())
            rank.hide_torch()
            _sibling("huge_pages").use_huge_pages()
            helpers.relieve()
            later = []
            link.send(b'{"complete": true}')
            continue
        helpers.wait(None)
        hurry = helpers.reap()
        while not hurry and helpers.wait(_QUIET_SECONDS):
            hurry = helpers.reap()
        begun = begun or not hurry


class Helpers:
    """Child processes, each of which waits for one order."""

    def __init__(self, link: socket.socket, pidfd_open: Callable[[int], int], program: ModuleType) -> None:
        """Hold no helpers yet.

        Args:
            link: the socket to the supervisor, from which helpers receive orders.
            pidfd_open: opens a pidfd of a process.
            program: the module fork_helper, which helpers run.
        """
        self._link = link
        self._parent = os.getpid()
        self._open = pidfd_open
        self._program = program
        self._pidfds: dict[int, int] = {}  # by pid
        self._relieved = os.pipe()  # helpers without an order end when this pipe is closed

    def fill(self) -> dict[str, Any] | None:
        """Fork the missing helpers. Return None in the fork server, and a rank's order in that rank."""
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
        """Return the descriptors that this object holds."""
        return {*self._relieved, *self._pidfds.values()}

    def wait(self, seconds: float | None) -> bool:
        """Wait up to `seconds` (None: without limit) for the end of a helper. Return whether a helper has ended."""
        poll = select.poll()
        for pidfd in self._pidfds.values():
            poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))

    def reap(self) -> bool:
        """Forget the helpers that have ended. Return whether new helpers are needed at once.

        If a helper has found the supervisor gone, this process ends.
        """
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
        """End the idle helpers, so that their replacements inherit the late imports."""
        for fd in self._relieved:
            os.close(fd)
        for pid, pidfd in self._pidfds.items():
            os.close(pidfd)
            os.waitpid(pid, 0)
        self._relieved = os.pipe()
        self._pidfds = {}


def _import_late_modules(link: socket.socket, preloaded: list[str], modules: list[str], known: Collection[int]) -> None:
    """Import those `modules` that are installed. If a module prevents forking, restart this program without it.

    Args:
        link: the socket to the supervisor.
        preloaded: the modules imported besides torch, for a restart.
        modules: the modules to import.
        known: descriptors that belong to no module.
    """
    gc.disable()
    imported_modules = _sibling("imported_modules").ImportedModules({link.fileno(), *known})
    left_out = ""
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
        remaining = ",".join(name for name in modules if name not in without)
        _restart(link, preload=preloaded, when="begun", later=remaining)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main()
