"""Takes a rank's page the moment the hooks are imported, and prepares the dump of stacks and of errors.

A rank that hangs before attach() (in init_process_group or while it prepares its data) can therefore be told from a
rank without the hooks, and its stacks can be dumped. A rank that fails there leaves its exception. `install` runs in
the thread that imports the hooks, mostly the main thread, and in a forked rank when its script imports them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
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

_page: Page | None = None
_forked = False
_seeds = seeds.of_environment(os.environ)  # read at import: hashes do not depend on what a script sets later


def install() -> None:
    """Take the page of this rank, once. Without a supervisor and in a rank's children, do nothing."""
    global _seeds  # noqa: PLW0603 - one process is one rank
    if _page is not None or not _is_rank():
        return
    _seeds = seeds.of_environment(os.environ)  # the fork server may have imported this module, and has no job's seed
    page = Page(_path_of_page())
    with contextlib.suppress(OSError):  # without the futex the supervisor sees this rank's end only when it is over
        exit_futex.arm(page.path)
    _begin(page)
    _show_stacks(page)


def acquire_page_for_launcher() -> Page | None:
    """Acquire the page of the rank that has started this process, if that rank is a launcher without hooks.

    A site's shell script may prepare the environment and start Python as its child. The process that attaches is the
    rank then; other processes of such a script may import torch without being ranks. The supervisor signals the
    launcher and sees only the launcher's end, so this process offers no stacks.

    Returns:
        The page, or None if this process cannot be the rank, or if another process is the rank already.
    """
    if _page is not None or not _is_below_rank():
        return None
    path = _path_of_page()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # of two processes that attach at once only one becomes the rank
        page = Page(path)
        is_in_use = page.attempt == _own_attempt() and protocol.process_start_time(page.pid) == page.start_time
        if is_in_use:
            page.close()
            return None
        _begin(page)
    return page


def _path_of_page() -> Path:
    return page_path(Path(os.environ[protocol.ENV_MEMORY_DIR]), int(os.environ["RANK"]))


def _own_attempt() -> int:
    return int(os.environ[protocol.ENV_ATTEMPT])


def _begin(page: Page) -> None:
    global _page  # noqa: PLW0603 - one process is one rank
    page.begin(_own_attempt(), os.getpid(), protocol.own_start_time())
    error_file.keep(page)
    lossy_output.install()
    interpreter_end.watch(page)
    _page = page
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """Give up the page in a forked child of the rank: the page belongs to the parent."""
    global _page, _forked  # noqa: PLW0603 - one process is one rank
    _page = None
    _forked = True


def own_seeds() -> Seeds:
    """Return the seeds that this process was started with."""
    return _seeds


def is_forked() -> bool:
    """Return whether this process was forked by a rank."""
    return _forked


def _show_stacks(page: Page) -> None:
    """Install a dump of all stacks at STACKS_SIGNAL, into a file of its own, if that file can be made."""
    path = protocol.stacks_path(page.path.parent, int(os.environ["RANK"]))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError:
        return  # without the flag the supervisor does not ask for stacks
    # As the interpreter ends, faulthandler restores the handler that it found. With the default handler a request for
    # stacks would kill a rank that is still ending, so the signal is ignored first.
    with contextlib.suppress(ValueError):  # a thread other than the main thread imports the hooks
        signal.signal(protocol.STACKS_SIGNAL, signal.SIG_IGN)
    faulthandler.register(protocol.STACKS_SIGNAL, file=fd, all_threads=True)
    page.raise_flag(protocol.Flag.STACKS)


def torch_is_being_imported() -> bool:
    """Return whether torch is importing this package now: an error here must not make torch's import fail."""
    torch = sys.modules.get("torch")
    return bool(getattr(getattr(torch, "__spec__", None), "_initializing", False))


def own_page() -> Page | None:
    """Return this rank's page, taken now if it was not yet; None without a supervisor."""
    install()
    return _page


def _is_rank() -> bool:
    """Return whether the supervisor started this process itself, so that it is no DataLoader worker or subprocess."""
    return os.getsid(0) == os.getpid() and os.getppid() == supervisor_of_job()


def _is_below_rank() -> bool:
    """Return whether this process's session is led by a rank, and this process has that rank's number and world size.

    A process that torchrun starts below a rank leads a session of its own, and is none.
    """
    supervisor = supervisor_of_job()
    numbers = f"{os.environ.get('RANK')}/{os.environ.get('WORLD_SIZE')}"
    if supervisor == 0 or os.environ.get(protocol.ENV_RANK) != numbers or _forked:
        return False
    return protocol.parent_of(os.getsid(0)) == supervisor


def supervisor_of_job() -> int:
    """Return the pid of the supervisor whose job this process belongs to, as a rank or below one; 0 without a job."""
    identity = os.environ.get(protocol.ENV_SUPERVISOR)
    if identity is None or protocol.ENV_MEMORY_DIR not in os.environ:
        return 0
    return int(identity.partition(":")[0])
