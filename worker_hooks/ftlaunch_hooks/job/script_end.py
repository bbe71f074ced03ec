"""The end of a script that has attached: when it says by itself that the training is over.

A loop of the script's own has no end that the hooks can see. `job.finish()` says it. Without that the interpreter's
ordinary end does: it is heard at atexit, which os._exit(), a signal and a crash do not reach.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

NO_FINISH = (
    "the script ends after step {step} without job.finish(): with exit code 0 that is the end of its training, of which"
    " step {newest} is the newest in memory"
)


def at_ordinary_end(call: Callable[[], None]) -> None:
    """Have `call` called as the interpreter ends, unless an uncaught exception ends it; not in forked children.

    The exit code is not known then: `sys.exit(3)` is an ordinary end, too.
    """
    owner = os.getpid()

    def ends() -> None:
        if os.getpid() == owner and getattr(sys, "last_value", None) is None:
            call()

    atexit.register(ends)
