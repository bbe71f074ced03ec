"""What a rank does the moment the hooks are imported: take its page, and be ready to show its stacks.

So that a rank that hangs before attach() (in init_process_group, in the data) can be told from one that does
not use the hooks, and leaves its stacks.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path

from ftlaunch_hooks import protocol
from ftlaunch_hooks.page import Page, page_path

_taken: Page | None = None


def install() -> None:
    """Take the page of this rank, where a supervisor watches; nothing elsewhere, and nothing in children."""
    global _taken  # noqa: PLW0603 - one process is one rank
    if _taken is not None or not _is_rank():
        return
    page = Page(page_path(Path(os.environ[protocol.ENV_MEMORY_DIR]), int(os.environ["RANK"])))
    page.begin(int(os.environ[protocol.ENV_ATTEMPT]), os.getpid(), protocol.own_start_time())
    faulthandler.register(protocol.STACKS_SIGNAL, file=sys.__stderr__ or 2, all_threads=True)
    page.raise_flag(protocol.Flag.STACKS)
    _taken = page


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
