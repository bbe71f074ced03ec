"""Shows what the processes of a job do at this moment, for a test that waits in vain."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_SECONDS = 20  # for one process


def stacks_of(pids: Iterable[int]) -> str:
    """Return the stacks of processes, as py-spy sees them from outside, or why a process cannot be inspected."""
    found = []
    for pid in pids:
        command = Path(sys.executable).with_name("py-spy")
        try:
            shown = subprocess.run(
                [command, "dump", "--nonblocking", "--pid", str(pid)],
                capture_output=True, text=True, timeout=_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            found.append(f"--- {pid}: {error}")
        else:
            found.append(f"--- {pid}\n{shown.stdout}{shown.stderr}")
    return "\n".join(found)
