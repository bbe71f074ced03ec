"""What a rank does the moment the hooks are imported: it takes its page, and gets ready to dump stacks and errors.

So a rank that hangs before attach() (in init_process_group, in the data) can be told from a rank without the hooks,
and its stacks can be had. A rank that fails there leaves its exception.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import seeds
from ftlaunch_contract.checkpoint.seeds import Seeds
from ftlaunch_contract.pages import exit_futex
from ftlaunch_contract.pages.page import Page, page_path
from ftlaunch_hooks.process import error_file, interpreter_end, lossy_output

_taken: Page | None = None
_forked = False
_seeds = seeds.of_environment(os.environ)  # now: what a script sets later in the environment changes no hash


def install() -> None:
    """Take the page of this rank. Without a supervisor, and in children of a rank, do nothing."""
    global _taken, _seeds  # noqa: PLW0603 - one process is one rank
    if _taken is not None or not _is_rank():
        return
    _seeds = seeds.of_environment(os.environ)  # the fork server, which may have imported this module, has no job's seed
    page = Page(page_path(Path(os.environ[protocol.ENV_MEMORY_DIR]), int(os.environ["RANK"])))
    with contextlib.suppress(OSError):  # then the supervisor sees the end of this rank only when it is over
        exit_futex.arm(page.path)
    page.begin(int(os.environ[protocol.ENV_ATTEMPT]), os.getpid(), protocol.own_start_time())
    _show_stacks(page)
    error_file.keep(page)
    lossy_output.install()
    interpreter_end.watch(page)
    _taken = page
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """In a forked child of the rank: the page is not the child's."""
    global _taken, _forked
    _taken, _forked = None, True


def own_seeds() -> Seeds:
    """The seeds that this process was started with."""
    return _seeds


def is_forked() -> bool:
    """Whether this process was forked by a rank."""
    return _forked


def _show_stacks(page: Page) -> None:
    """At STACKS_SIGNAL dump all stacks into a file that nothing else writes to, if such a file can be made."""
    path = protocol.stacks_path(page.path.parent, int(os.environ["RANK"]))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError:
        return  # without the flag the supervisor does not ask for stacks
    # As the interpreter ends, faulthandler lets go of the signal and puts back what it has found: by default, a rank
    # that is still ending when its stacks are asked for would be ended by the question.
    with contextlib.suppress(ValueError):  # the hooks are imported by another thread than the main one
        signal.signal(protocol.STACKS_SIGNAL, signal.SIG_IGN)
    faulthandler.register(protocol.STACKS_SIGNAL, file=fd, all_threads=True)
    page.raise_flag(protocol.Flag.STACKS)


def torch_is_being_imported() -> bool:
    """Whether torch imports this package now: then an error here must not fail the import (optimizer_steps.py)."""
    torch = sys.modules.get("torch")
    return bool(getattr(getattr(torch, "__spec__", None), "_initializing", False))


def own_page() -> Page | None:
    """This rank's page, or None without a supervisor."""
    install()
    return _taken


def _is_rank() -> bool:
    """Whether this very process was started by the supervisor: not a DataLoader worker, not a subprocess."""
    identity = os.environ.get(protocol.ENV_SUPERVISOR)
    if identity is None or protocol.ENV_MEMORY_DIR not in os.environ:
        return False
    return os.getsid(0) == os.getpid() and os.getppid() == int(identity.partition(":")[0])
