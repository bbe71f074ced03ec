"""Recognizes the ordinary end of a script that has attached, which ends a training without job.finish().

The hooks cannot see the end of a loop of the script's own. `job.finish()` marks it. Without that call the ordinary end
of the interpreter counts, which an atexit function sees; os._exit(), a signal and a crash do not run it.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

from ftlaunch_hooks.process import interpreter_end

NO_FINISH = (
    "the script ends after step {step} without job.finish(): with exit code 0 that is the end of its training, of which"
    " {kept}"
)


def at_ordinary_end(call: Callable[[bool], None]) -> None:
    """Register `call` for the interpreter's end, unless an uncaught exception ends it; not in forked children.

    Args:
        call: receives whether the exit code is known to be 0. `sys.exit(3)` is an ordinary end, too, and if Python runs
            the script itself, the code of a sys.exit() is not known at that moment.
    """
    owner = os.getpid()
    main = [interpreter_end.outermost_module()]

    def ends() -> None:
        frame = main.pop()  # the frame holds the script's objects, which must not live longer
        if os.getpid() == owner and getattr(sys, "last_value", None) is None:
            call(interpreter_end.is_asked_to_end_well() or interpreter_end.has_returned(frame))

    atexit.register(ends)
