"""`ftlaunch` in a process of its own, with a reader of its journal."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.system import processes


class Supervisor:
    """A supervisor in a session of its own, which dies with this process."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], out: Path, journal: Path) -> None:
        """Start it.

        Args:
            argv: arguments of ftlaunch.
            env: the whole environment.
            out: the file to which the output is appended.
            journal: the path of the journal, of which only new events are read.
        """
        self._journal = journal
        self._offset = journal.stat().st_size if journal.exists() else 0
        with out.open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "ftlaunch", *argv],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=processes.dies_with(os.getpid()),  # noqa: PLW1509 - it makes system calls only
            )
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code once the supervisor has ended; None after `seconds`."""
        ended, _, _ = select.select([self._pidfd], [], [], seconds)
        return self._popen.wait() if ended else None

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that are new since the last call."""
        if not self._journal.exists():
            return
        with self._journal.open("rb") as file:
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(end)
        for line in whole.splitlines():
            if line:
                yield json.loads(line)

    def children(self, word: str = "") -> list[int]:
        """Return the pids of the supervisor's children, ranks included, whose command lines contain a word."""
        return [pid for pid in processes.children(self.pid) if word in _command(pid)]

    def close(self) -> None:
        """Release the descriptor of the supervisor, which has ended."""
        os.close(self._pidfd)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
