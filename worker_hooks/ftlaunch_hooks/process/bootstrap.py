"""What a rank does the moment the hooks are imported: take its page, be ready to show its stacks and last words.

So that a rank that hangs before attach() (in init_process_group, in the data) can be told from one that does
not use the hooks, and leaves its stacks; and one that fails leaves its exception.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.pages import exit_futex
from ftlaunch_contract.pages.page import Page, page_path
from ftlaunch_hooks.process import error_file

_taken: Page | None = None


def install() -> None:
    """Take the page of this rank, where a supervisor watches; nothing elsewhere, and nothing in children."""
    global _taken  # noqa: PLW0603 - one process is one rank
    if _taken is not None or not _is_rank():
        return
    page = Page(page_path(Path(os.environ[protocol.ENV_MEMORY_DIR]), int(os.environ["RANK"])))
    with contextlib.suppress(OSError):  # then its end is seen when it is over
        exit_futex.hang_up(page.path)
    page.begin(int(os.environ[protocol.ENV_ATTEMPT]), os.getpid(), protocol.own_start_time())
    _show_stacks(page)
    error_file.keep()
    _taken = page


def _show_stacks(page: Page) -> None:
    """Be ready to show all stacks, in a file that nothing else writes to; where there is none, be silent about it."""
    path = protocol.stacks_path(page.path.parent, int(os.environ["RANK"]))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError:
        return  # the flag is not raised: nobody will ask
    faulthandler.register(protocol.STACKS_SIGNAL, file=fd, all_threads=True)
    page.raise_flag(protocol.Flag.STACKS)


def torch_is_being_imported() -> bool:
    """Whether torch imports us: then an error of ours must not be its own (optimizer_steps.py)."""
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
