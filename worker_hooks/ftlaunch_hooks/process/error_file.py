"""The exception a rank dies of, where torchelastic's `@record` would leave it: without `@record`.

The log may hold other tracebacks, or too much besides; the file holds this one, whole.
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
    """From now on leave this process's uncaught exception in the error file; whoever hooked before us comes next."""
    previous, owner = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if os.getpid() == owner:  # forked children inherit the hook, but their ends are the rank's business
                _write(kind, error, trace)
        finally:
            previous(kind, error, trace)

    sys.excepthook = hook


def _write(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    path = os.environ.get(_ENV_FILE)
    if not path:
        return
    # RecursionError, MemoryError: what the rank dies of may still be with us; its own traceback is still printed
    with contextlib.suppress(OSError, ValueError, RecursionError, MemoryError):
        stack = "".join(traceback.format_exception(kind, error, trace))
        last = traceback.format_exception_only(kind, error)[-1].strip()
        extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
        text = json.dumps({"message": {"message": last, "extraInfo": extra}})
        with Path(path).open("x", encoding="utf-8") as file:  # "x": what `@record` has left stays
            file.write(text)
