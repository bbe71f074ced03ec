"""MindSpore's scheduler: a program that rank 0 starts, by which the ranks of a job find each other.

It ends when all ranks have left, or with the supervisor. What it holds is in no snapshot: each attempt has its own.
"""

from __future__ import annotations

import os
import select
import threading

from mindspore.communication import init

from ftlaunch_hooks.process.parent_watch import supervisor_pidfd


def _end_with(supervisor: int) -> None:
    select.select([supervisor], [], [])
    os._exit(1)


if __name__ == "__main__":
    supervisor = supervisor_pidfd()
    if supervisor is not None:
        threading.Thread(target=_end_with, args=(supervisor,), daemon=True).start()
    init()
