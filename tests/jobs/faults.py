"""What happens to the ranks of a framework's job: FAULT="WHERE RANK NUMBER [HOW]; ...", one fault a process.

WHERE and NUMBER: a place that the script has by name, and which visit of it, or * for the first of the process. HOW:
`kill` (SIGKILL to this rank, where nothing else is said), `freeze` (SIGSTOP), `term` (SIGTERM to this rank), `stop`
(SIGTERM to the supervisor), `orphan` (SIGKILL to the supervisor). A process has the first fault that had not happened
as it began; each is written to the file `fired` of the script's first argument, with the number of the attempt.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OUT = Path(sys.argv[1])
RANK = os.environ.get("RANK", "0")
ATTEMPT = os.environ.get("FTLAUNCH_ATTEMPT", "0")
FIRED = OUT / "fired"
_SIGNALS = {
    "kill": signal.SIGKILL,
    "freeze": signal.SIGSTOP,
    "term": signal.SIGTERM,
    "stop": signal.SIGTERM,
    "orphan": signal.SIGKILL,
}


@functools.cache
def _armed() -> list[str]:
    """What is still to happen in this process; not a variable of the module, which another attempt has otherwise."""
    faults = [one.split() for one in os.environ.get("FAULT", "").split(";") if one.strip()]
    happened = len(FIRED.read_text().splitlines()) if FIRED.exists() else 0
    return faults[happened] if happened < len(faults) else []


def meets(where: str, number: int) -> bool:
    """Whether this process has its fault here."""
    return _armed()[:2] == [where, RANK] and _armed()[2] in ("*", str(number))


def strike(where: str, number: int, first: Callable[[], None] = lambda: None) -> None:
    """Have the fault happen here, if it is this process's. first: called before."""
    if not meets(where, number):
        return
    with FIRED.open("a") as file:
        file.write(f"{' '.join(_armed())} {ATTEMPT}\n")
    how = [*_armed(), "kill"][3]
    _armed().clear()
    first()
    supervisor = int(os.environ["FTLAUNCH_SUPERVISOR"].partition(":")[0])
    os.kill(supervisor if how in ("stop", "orphan") else os.getpid(), _SIGNALS[how])


@contextmanager
def in_own_save(number: int) -> Iterator[None]:
    """Within it torch.save() meets the place `saving` of that number once a file is written, and others are not."""
    import torch

    save: Any = torch.save

    def struck(*args: Any, **kwargs: Any) -> None:
        save(*args, **kwargs)
        strike("saving", number)

    torch.save = struck
    try:
        yield
    finally:
        torch.save = save
