"""The end of a rank's interpreter: process groups that were left are ended, and a good end is told.

A gloo thread that wants the interpreter's lock while Python takes itself apart ends the process by SIGABRT. The end of
the process group ends its threads. What still crashes then, gloo or another library, is no failure of the script's: the
page says before that moment that the script is over.
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

_PATIENCE = 3.0  # seconds: destroying a group waits for its collectives, which no other rank may ever join
_RETURN = tuple(opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in opmap)

_watched: InterpreterEnd | None = None


def watch(page: Page) -> None:
    """From now on see to the end of this process. page: this rank's."""
    global _watched  # noqa: PLW0603 - one process is one rank
    _watched = InterpreterEnd(page)


def exits_with(code: object) -> None:
    """Told by forked_rank.py, which sees the SystemExit that ends the script: Python has no other place for it."""
    if _watched is not None:
        _watched.well = code is None or (isinstance(code, int) and code == 0)


def is_asked_to_end_well() -> bool:
    """Whether the script has asked for exit code 0 by sys.exit(), as far as that is known."""
    return _watched is not None and _watched.well


class InterpreterEnd:
    """What is done when the script, its threads and its atexit functions are over."""

    def __init__(self, page: Page) -> None:
        self._page, self._owner = page, os.getpid()
        self._main: FrameType | None = outermost_module()
        self._over = threading.Event()
        self._helper: threading.Thread | None = None
        self.well = False
        """the script has asked for exit code 0"""
        # From Python 3.12 on atexit functions can start no thread: the thread is started just before them.
        threading._register_atexit(self._prepare)  # type: ignore[attr-defined] # what concurrent.futures uses
        atexit.register(self._end)  # functions that are registered later are called earlier

    def _prepare(self) -> None:
        """Start the thread that ends the process groups; it waits for the script's atexit functions."""
        if os.getpid() == self._owner and not _has_failed() and _has_groups():
            helper = threading.Thread(target=self._end_groups, name="ftlaunch-end", daemon=True)
            with suppress(RuntimeError):  # Python 3.12.0 to 3.12.2 start none even here: the groups are left
                helper.start()
                self._helper = helper

    def _end(self) -> None:
        main, self._main = self._main, None  # it holds what the script has made, which Python is about to take apart
        if os.getpid() != self._owner:
            return  # a forked child
        if self._helper is not None:
            self._over.set()
            self._helper.join(_PATIENCE)
            if self._helper.is_alive():
                say(f"the process groups that the script has left do not end within {_PATIENCE:.0f} s: they are left")
        if self.well or has_returned(main):
            if not gc.isenabled():
                gc.freeze()  # the script wants no collections: the last one finds nothing
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
        """Python collects garbage once more when all atexit functions are over, before it takes itself apart."""
        if phase == "start" and sys.is_finalizing() and os.getpid() == self._owner:
            self._page.raise_flag(Flag.ENDED_WELL)


def outermost_module() -> FrameType | None:
    """Return the frame of the main module, which is on the main thread's stack now."""
    frame, found = sys._current_frames().get(threading.main_thread().ident or 0), None
    while frame is not None:
        found = frame if frame.f_code.co_name == "<module>" else found
        frame = frame.f_back
    return found


def has_returned(frame: FrameType | None) -> bool:
    """Whether a frame that is over has come to its end, and was not left by an exception."""
    return frame is not None and frame.f_code.co_code[frame.f_lasti] in _RETURN


def _has_failed() -> bool:
    """Whether an uncaught exception ends the interpreter; the other ranks must not be kept waiting for its end."""
    return getattr(sys, "last_value", None) is not None


def _has_groups() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
