"""What a detached job says, in a file of its run dir: how the file is called, and whose it is."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from ftlaunch.history.runs import Run

TERMINAL_LOG = "terminal.log"
_OF_A_NODE = re.compile(r"terminal\.(.+)\.(\d+)\.log")


def log_name(host: str, pid: int, *, several: bool) -> str:
    """The name of the file. several: the nodes of a job share the run dir, and each may have one."""
    return f"terminal.{host}.{pid}.log" if several else TERMINAL_LOG


def living_log(run: Run) -> tuple[Path, int] | None:
    """The file into which a process on this machine says what the job says, and that process; None: there is none."""
    host = socket.gethostname()
    known = [(run.run_dir / TERMINAL_LOG, run.pid)]
    for path in run.run_dir.glob("terminal.*.log"):
        if (match := _OF_A_NODE.fullmatch(path.name)) is not None and match[1] == host:
            known.append((path, int(match[2])))
    living = [(path, pid) for path, pid in known if _writes(pid, path)]
    return max(living, key=lambda one: one[0].stat().st_mtime, default=None)


def _writes(pid: int, path: Path) -> bool:
    """Whether the standard output of a process is that file."""
    try:
        return Path(f"/proc/{pid}/fd/1").samefile(path)
    except OSError:  # the process is gone, or another user's
        return False
