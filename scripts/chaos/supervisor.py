"""`ftlaunch` in a process of its own, and what its journal says."""

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
    """One of them, in a session of its own; it ends with us."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], out: Path, journal: Path) -> None:
        """argv: of ftlaunch. out: what it prints is added there. journal: where it will write, after what is there."""
        self._journal, self._offset = journal, journal.stat().st_size if journal.exists() else 0
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
        """Its exit status, once it has ended; None after so long."""
        ended, _, _ = select.select([self._pidfd], [], [], seconds)
        return self._popen.wait() if ended else None

    def events(self) -> Iterator[dict[str, Any]]:
        """Those that are new."""
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
        """Its children, ranks and all; only those with this word in their command lines."""
        return [pid for pid in processes.children(self.pid) if word in _command(pid)]

    def close(self) -> None:
        """Once it has ended."""
        os.close(self._pidfd)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
