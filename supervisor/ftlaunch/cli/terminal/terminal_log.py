"""Names and finds the terminal log of a detached job: the file in the run dir that holds the supervisor's output."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from ftlaunch.history.runs import Run

TERMINAL_LOG = "terminal.log"
_NODE_LOG = re.compile(r"terminal\.(.+)\.(\d+)\.log")


def log_name(host: str, pid: int, *, several: bool) -> str:
    """Return the name of a process's terminal log.

    Args:
        host: name of the process's machine.
        pid: id of the process.
        several: whether the job has several nodes, whose logs share the run dir and need different names.
    """
    return f"terminal.{host}.{pid}.log" if several else TERMINAL_LOG


def living_log(run: Run) -> tuple[Path, int] | None:
    """Return the terminal log that a process on this machine writes now, and the pid of that process.

    Returns:
        The most recently written such log; None if no process on this machine writes one.
    """
    host = socket.gethostname()
    known = [(run.run_dir / TERMINAL_LOG, run.pid)]
    for path in run.run_dir.glob("terminal.*.log"):
        if (match := _NODE_LOG.fullmatch(path.name)) is not None and match[1] == host:
            known.append((path, int(match[2])))
    living = [(path, pid) for path, pid in known if _writes(pid, path)]
    return max(living, key=lambda log: log[0].stat().st_mtime, default=None)


def _writes(pid: int, path: Path) -> bool:
    """Return whether the stdout of process `pid` is the file `path`."""
    try:
        return Path(f"/proc/{pid}/fd/1").samefile(path)
    except OSError:  # the process is gone, or another user's
        return False
