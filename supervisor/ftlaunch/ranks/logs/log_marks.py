"""Notes of how long each rank's log was at which time, in a file beside the logs: lines of ranks have no times.

A thread of its own looks at the logs, as storage may not answer. `ftctl logs --since` reads the notes.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ftlaunch.history.rank_logs import marks_name
from ftlaunch.ranks.log_files import size

_EVERY = 10.0  # seconds between looks
_MOST = 100.0  # bytes of notes a second: of very many ranks that all print there are notes less often


class LogMarks:
    """Notes for the logs of one attempt on this machine. Storage that takes no notes costs only these."""

    def __init__(self, logs: Mapping[int, Path]) -> None:
        """logs: by rank; all lie in one folder, which is there."""
        self._logs = dict(logs)
        self._path = next(iter(logs.values())).parent / marks_name(min(logs))
        self._sizes: dict[int, int] = {}
        self._over = threading.Event()
        with contextlib.suppress(RuntimeError):  # no thread can be started: no notes
            threading.Thread(target=self._note, name="ftlaunch-log-marks", daemon=True).start()

    def end(self) -> None:
        """The ranks have ended: a last note, and no more. Waits for nothing."""
        self._over.set()

    def _note(self) -> None:
        last = False
        with contextlib.suppress(OSError):
            while True:
                wait = max(_EVERY, self._look() / _MOST)
                if last:
                    return
                last = self._over.wait(wait)

    def _look(self) -> int:
        """Note the logs that have grown; returns how many bytes that took. Raises OSError."""
        now = time.time()
        sizes = {rank: size(log) for rank, log in self._logs.items()}
        grown = {rank: length for rank, length in sizes.items() if self._sizes.get(rank) != length}
        self._sizes = sizes
        if not grown:
            return 0
        line = json.dumps({"t": round(now, 3), "sizes": grown}, separators=(",", ":")).encode() + b"\n"
        with self._path.open("ab") as file:
            file.write(line)
        return len(line)
