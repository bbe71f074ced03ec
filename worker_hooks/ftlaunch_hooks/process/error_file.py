"""Leaves the exception that ends a rank in torchelastic's error file, also in scripts without `@record`.

A rank's log may hold other tracebacks, or be too long to search; the error file holds this one traceback, whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

_ENV_FILE = "TORCHELASTIC_ERROR_FILE"


def keep() -> None:
    """From now on write an uncaught exception to the error file, then call the hook that was there before."""
    previous, owner = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if os.getpid() == owner:  # forked children inherit the hook; their exceptions do not end the rank
                _write(kind, error, trace)
        finally:
            previous(kind, error, trace)

    sys.excepthook = hook


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
