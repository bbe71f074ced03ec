"""Run MindSpore's scheduler, by which the ranks of a job find each other: a program that rank 0 starts.

The program ends when all ranks have left, or with the supervisor. Each attempt starts its own scheduler, whose state is
in no snapshot.
"""

from __future__ import annotations

import os
import select
import threading

from mindspore.communication import init

from ftlaunch_hooks.process.parent_watch import supervisor_pidfd


def _end_with(supervisor: int) -> None:
    """Exit as soon as the process of the pidfd `supervisor` ends."""
    select.select([supervisor], [], [])
    os._exit(1)


if __name__ == "__main__":
    supervisor = supervisor_pidfd()
    if supervisor is not None:
        threading.Thread(target=_end_with, args=(supervisor,), daemon=True).start()
    init()
