"""The end of a script that has attached: when it says by itself that the training is over.

A loop of the script's own has no end that the hooks can see. `job.finish()` says it. Without that the interpreter's
ordinary end does: it is heard at atexit, which os._exit(), a signal and a crash do not reach.
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
    """Have `call` called as the interpreter ends, unless an uncaught exception ends it; not in forked children.

    Args:
        call: told whether the exit code is known to be 0. `sys.exit(3)` is an ordinary end, too, and where Python runs
            the script itself, the code of a sys.exit() is not known at that moment.
    """
    owner = os.getpid()
    main = [interpreter_end.outermost_module()]

    def ends() -> None:
        frame = main.pop()  # it holds what the script has made
        if os.getpid() == owner and getattr(sys, "last_value", None) is None:
            call(interpreter_end.is_asked_to_end_well() or interpreter_end.has_returned(frame))

    atexit.register(ends)
