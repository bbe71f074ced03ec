"""Leaves the exception that ends a rank in torchelastic's error file, also in scripts without `@record`.

A rank's log may hold other tracebacks, or be too long to search; the error file holds this one traceback, whole.

An error that the hooks raise because of how the script uses them (`count_as_final`) would come again in every attempt.
The rank says so in its page, and shows the script's frames only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, Flag

_ENV_FILE = "TORCHELASTIC_ERROR_FILE"
_OURS = f"{Path(__file__).parents[2]}/ftlaunch_"  # where the packages of the hooks lie

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


@dataclass
class _Kept:
    """What `keep` has installed."""

    page: Page
    owner: int
    hook: _Hook


_kept: _Kept | None = None
_noted: BaseException | None = None
_final: list[type[BaseException]] = []
_told: list[Callable[[], None]] = []


def count_as_final(*types: type[BaseException]) -> None:
    """From now on an uncaught error of these types is final, unless an OSError has caused it: that may pass."""
    _final.extend(types)


def before_it_is_shown(call: Callable[[], None]) -> None:
    """From now on have `call` called when an exception is about to end this rank, while all objects are there."""
    _told.append(call)


def keep(page: Page) -> None:
    """From now on write an uncaught exception to the error file, then call the hook that was there before.

    page: this rank's.
    """
    global _kept  # noqa: PLW0603 - one process is one rank
    owner = os.getpid()
    _kept = _Kept(page, owner, _install_hook(page, owner))
    _end_with_threads(page, owner)


def come_first() -> None:
    """Have our hook called before one that the script has put in its place meanwhile: one that prints JSON, for one.

    To be called as the script attaches.
    """
    if _kept is not None and os.getpid() == _kept.owner and sys.excepthook is not _kept.hook:
        _kept.hook = _install_hook(_kept.page, _kept.owner)


def _install_hook(page: Page, owner: int) -> _Hook:
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _noted  # noqa: PLW0603 - one process is one rank
        try:
            # Forked children inherit the hook, and their exceptions do not end the rank. A script's hook may call one
            # of ours that was there before it.
            if os.getpid() == owner and error is not _noted:
                _noted = error
                if _is_final(error):
                    page.raise_flag(Flag.FINAL)
                    _show_the_script_only(error, trace)
                _write(kind, error, trace)
                for call in _told:
                    call()
        finally:
            previous(kind, error, trace)

    sys.excepthook = hook
    return hook


def _end_with_threads(page: Page, owner: int) -> None:
    """From now on end this process where an error that is final ends a thread.

    The thread was to train. The main thread may end well without it, and the job would count as done.
    """
    previous = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        error = arguments.exc_value
        if error is None or not _is_final(error) or os.getpid() != owner:
            previous(arguments)
            return
        page.raise_flag(Flag.FINAL)
        _show_the_script_only(error, arguments.exc_traceback)
        _write(arguments.exc_type, error, arguments.exc_traceback)
        previous(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_GIVEN_UP)

    threading.excepthook = hook


def _is_final(error: BaseException) -> bool:
    return isinstance(error, tuple(_final)) and not isinstance(error.__cause__, OSError)


def _show_the_script_only(error: BaseException, trace: TracebackType | None) -> None:
    """Take the hooks' own frames out of a traceback: the message says what they have found."""
    error.__cause__, error.__suppress_context__ = None, True
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename.startswith(_OURS):
            trace.tb_next = None
        trace = trace.tb_next


def _write(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    path = os.environ.get(_ENV_FILE)
    if not path:
        return
    # RecursionError, MemoryError: what ends the rank may strike here again; the traceback is printed in any case
    with contextlib.suppress(OSError, ValueError, RecursionError, MemoryError):
        stack = "".join(traceback.format_exception(kind, error, trace))
        last = traceback.format_exception_only(kind, error)[-1].strip()
        extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
        text = json.dumps({"message": {"message": last, "extraInfo": extra}})
        with Path(path).open("x", encoding="utf-8") as file:  # "x": a file that `@record` has written stays
            file.write(text)
