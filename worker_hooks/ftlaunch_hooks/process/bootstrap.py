"""What a rank does the moment the hooks are imported: it takes its page, and gets ready to dump stacks and errors.

So a rank that hangs before attach() (in init_process_group, in the data) can be told from a rank without the hooks,
and its stacks can be had. A rank that fails there leaves its exception.
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

_taken: Page | None = None
_forked = False
_seeds = seeds.of_environment(os.environ)  # now: what a script sets later in the environment changes no hash


def install() -> None:
    """Take the page of this rank. Without a supervisor, and in children of a rank, do nothing."""
    global _seeds  # noqa: PLW0603 - one process is one rank
    if _taken is not None or not _is_rank():
        return
    _seeds = seeds.of_environment(os.environ)  # the fork server, which may have imported this module, has no job's seed
    page = Page(_path_of_page())
    with contextlib.suppress(OSError):  # then the supervisor sees the end of this rank only when it is over
        exit_futex.arm(page.path)
    _begin(page)
    _show_stacks(page)


def take_page_for_launcher() -> Page | None:
    """Take the page of the rank that has started this process, where that rank is a launcher without hooks.

    A site's shell script sets things up, and starts Python as its child. The process that attaches is the rank then;
    other processes of such a script may import torch, and are none. Return None where this process cannot be the rank,
    or another one is. The supervisor signals the launcher and sees only its end, so this process offers no stacks.
    """
    if _taken is not None or not _is_below_rank():
        return None
    path = _path_of_page()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # two processes that attach at once are not both the rank
        page = Page(path)
        is_taken = page.attempt == _own_attempt() and protocol.process_start_time(page.pid) == page.start_time
        if is_taken:
            page.close()
            return None
        _begin(page)
    return page


def _path_of_page() -> Path:
    return page_path(Path(os.environ[protocol.ENV_MEMORY_DIR]), int(os.environ["RANK"]))


def _own_attempt() -> int:
    return int(os.environ[protocol.ENV_ATTEMPT])


def _begin(page: Page) -> None:
    global _taken  # noqa: PLW0603 - one process is one rank
    page.begin(_own_attempt(), os.getpid(), protocol.own_start_time())
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
    return os.getsid(0) == os.getpid() and os.getppid() == supervisor_of_job()


def _is_below_rank() -> bool:
    """Whether the leader of this process's session is a rank, and this process has its number among as many ranks.

    What torchrun starts below a rank leads a session of its own.
    """
    supervisor, numbers = supervisor_of_job(), f"{os.environ.get('RANK')}/{os.environ.get('WORLD_SIZE')}"
    if supervisor == 0 or os.environ.get(protocol.ENV_RANK) != numbers or _forked:
        return False
    return protocol.parent_of(os.getsid(0)) == supervisor


def supervisor_of_job() -> int:
    """The pid of the supervisor whose job this process was started in, by a rank or as one; 0 without a job."""
    identity = os.environ.get(protocol.ENV_SUPERVISOR)
    if identity is None or protocol.ENV_MEMORY_DIR not in os.environ:
        return 0
    return int(identity.partition(":")[0])
