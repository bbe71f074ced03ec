"""Ends the process groups that a script has left at the end of the interpreter, and records a good end in the page.

A gloo thread that wants the interpreter's lock while Python is finalizing ends the process by SIGABRT. Destroying the
process group ends its threads. A crash after that moment, in gloo or in another library, is no failure of the script:
the page says before that the script has ended well.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from opcode import opmap
from types import FrameType

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Flag
from ftlaunch_hooks.process.say import say

_PATIENCE_SECONDS = 3.0  # destroying a group waits for its collectives, which no other rank may ever join
_RETURN = tuple(opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in opmap)

_watched: InterpreterEnd | None = None


def watch(page: Page) -> None:
    """Watch the end of this process from now on, and record a good end in `page`, this rank's page."""
    global _watched  # noqa: PLW0603 - one process is one rank
    _watched = InterpreterEnd(page)


def exits_with(code: object) -> None:
    """Record the exit code of the SystemExit that ends the script.

    programs/forked_rank.py calls this function, because only the code that runs the script sees that exception.
    """
    if _watched is not None:
        _watched.well = code is None or (isinstance(code, int) and code == 0)


def is_asked_to_end_well() -> bool:
    """Return whether the script has asked for exit code 0 by sys.exit(), as far as that is known."""
    return _watched is not None and _watched.well


class InterpreterEnd:
    """Acts when the script, its threads and its atexit functions are over."""

    def __init__(self, page: Page) -> None:
        """Register for the interpreter's end. page: this rank's page."""
        self._page = page
        self._owner = os.getpid()
        self._main: FrameType | None = outermost_module()
        self._over = threading.Event()
        self._helper: threading.Thread | None = None
        self.well = False
        """whether the script has asked for exit code 0"""
        # From Python 3.12 on atexit functions cannot start threads, so the thread is started just before them.
        threading._register_atexit(self._prepare)  # type: ignore[attr-defined] # what concurrent.futures uses
        atexit.register(self._end)  # the script's functions are registered later, and therefore called earlier

    def _prepare(self) -> None:
        """Start the thread that ends the process groups; it waits for the script's atexit functions."""
        if os.getpid() == self._owner and not _has_failed() and _has_groups():
            helper = threading.Thread(target=self._end_groups, name="ftlaunch-end", daemon=True)
            with suppress(RuntimeError):  # Python 3.12.0 to 3.12.2 refuse even here, and the groups are left
                helper.start()
                self._helper = helper

    def _end(self) -> None:
        main = self._main
        self._main = None  # the frame holds the script's objects, which Python is about to delete
        if os.getpid() != self._owner:
            return  # a forked child
        if self._helper is not None:
            self._over.set()
            self._helper.join(_PATIENCE_SECONDS)
            if self._helper.is_alive():
                limit = f"{_PATIENCE_SECONDS:.0f} s"
                say(f"the process groups that the script has left do not end within {limit}: they are left")
        if self.well or has_returned(main):
            if not gc.isenabled():
                gc.freeze()  # the script wants no collections, so the last collection has no objects to visit
                gc.enable()
            gc.callbacks.append(self._note)

    def _end_groups(self) -> None:
        self._over.wait()
        if not _has_groups():
            return  # an atexit function of the script's has ended them
        try:
            sys.modules["torch.distributed"].destroy_process_group()
        except RuntimeError as error:
            say(f"cannot end the process groups that the script has left: {error}")

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        """Record the good end at the garbage collection that Python makes after all atexit functions."""
        if phase == "start" and sys.is_finalizing() and os.getpid() == self._owner:
            self._page.raise_flag(Flag.ENDED_WELL)


def outermost_module() -> FrameType | None:
    """Return the outermost module's frame on the main thread's stack (the main module's), or None."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    outermost = None
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            outermost = frame
        frame = frame.f_back
    return outermost


def has_returned(frame: FrameType | None) -> bool:
    """Return whether a finished frame has returned, and was not left by an exception."""
    return frame is not None and frame.f_code.co_code[frame.f_lasti] in _RETURN


def _has_failed() -> bool:
    """Return whether an uncaught exception ends the interpreter. The other ranks must not wait for such an end."""
    return getattr(sys, "last_value", None) is not None


def _has_groups() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
