"""Writes the exception that ends a rank to torchelastic's error file, also in scripts without `@record`.

A rank's log may hold other tracebacks, or be too long to search; the error file holds this one traceback, whole.

An error that the hooks raise because of the script's use of the hooks (`count_as_final`) would occur again in every
attempt. The rank says so in its page, and the traceback shows only the script's frames. The hooks that this module
installs (sys.excepthook, threading.excepthook) run in the thread that fails.
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
_HOOKS_PATH_PREFIX = f"{Path(__file__).parents[2]}/ftlaunch_"  # the paths of all packages of the hooks begin so

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


@dataclass
class _Kept:
    """The exception hook that `keep` has installed."""

    page: Page
    owner: int
    """pid of the rank"""
    hook: _Hook


_kept: _Kept | None = None
_handled_error: BaseException | None = None
_final_types: list[type[BaseException]] = []
_calls_before_showing: list[Callable[[], None]] = []


def count_as_final(*types: type[BaseException]) -> None:
    """Treat uncaught errors of these types as final from now on, except those that an OSError caused: it may pass."""
    _final_types.extend(types)


def before_it_is_shown(call: Callable[[], None]) -> None:
    """Register `call`, to be called when an exception is about to end this rank, while all objects still exist."""
    _calls_before_showing.append(call)


def keep(page: Page) -> None:
    """Write an uncaught exception to the error file from now on, then call the hook that was installed before.

    Args:
        page: this rank's page.
    """
    global _kept  # noqa: PLW0603 - one process is one rank
    owner = os.getpid()
    _kept = _Kept(page, owner, hook=_install_hook(page, owner))
    _end_with_threads(page, owner)


def come_first() -> None:
    """Put our hook before a hook that the script has installed meanwhile, for example one that prints JSON.

    The job calls this function as the script attaches.
    """
    if _kept is not None and os.getpid() == _kept.owner and sys.excepthook is not _kept.hook:
        _kept.hook = _install_hook(_kept.page, _kept.owner)


def _install_hook(page: Page, owner: int) -> _Hook:
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _handled_error  # noqa: PLW0603 - one process is one rank
        try:
            # Forked children inherit the hook, and their exceptions do not end the rank. A script's hook may call the
            # hook of ours that it replaced, so that one error comes here twice.
            if os.getpid() == owner and error is not _handled_error:
                _handled_error = error
                if _is_final(error):
                    page.raise_flag(Flag.FINAL)
                    _show_the_script_only(error, trace)
                _write(kind, error, trace)
                for call in _calls_before_showing:
                    call()
        finally:
            previous(kind, error, trace)

    sys.excepthook = hook
    return hook


def _end_with_threads(page: Page, owner: int) -> None:
    """End this process from now on if a final error ends one of its threads.

    The thread was training. The main thread may end well without it, and the job would count as done.
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
    return isinstance(error, tuple(_final_types)) and not isinstance(error.__cause__, OSError)


def _show_the_script_only(error: BaseException, trace: TracebackType | None) -> None:
    """Cut the hooks' own frames off a traceback: the error's message says what the hooks have found."""
    error.__cause__ = None
    error.__suppress_context__ = True
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename.startswith(_HOOKS_PATH_PREFIX):
            trace.tb_next = None
        trace = trace.tb_next


def _write(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    path = os.environ.get(_ENV_FILE)
    if not path:
        return
    # RecursionError, MemoryError: what ends the rank may occur here, too. The traceback is printed in any case.
    with contextlib.suppress(OSError, ValueError, RecursionError, MemoryError):
        stack = "".join(traceback.format_exception(kind, error, trace))
        last = traceback.format_exception_only(kind, error)[-1].strip()
        extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
        text = json.dumps({"message": {"message": last, "extraInfo": extra}})
        with Path(path).open("x", encoding="utf-8") as file:  # "x": a file that `@record` has written stays
            file.write(text)
