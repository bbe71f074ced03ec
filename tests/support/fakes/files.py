"""File threads that touch files at once, in the caller's thread, for tests whose clock jumps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftlaunch.system.file_thread import FileSystemSilent, FileThread, FileThreads


class FilesInPlace(FileThread):
    """A file system that answers at once, or not at all while `answers` is False."""

    def __init__(self) -> None:
        self.where = Path("/files")
        self.refused = 0
        self.answers = True
        self._waits: list[tuple[Callable[[], object], Callable[[OSError], None]]] = []

    @property
    def silent_seconds(self) -> float:
        """Seconds of silence: one if the file system does not answer."""
        return 0.0 if self.answers else 1.0

    @property
    def waiting(self) -> int:
        """The number of writes that came while the file system did not answer."""
        return len(self._waits)

    def write(self, function: Callable[[], object], failed: Callable[[OSError], None], **_: Any) -> bool:
        """Write now, or at the first flush after the file system answers again."""
        self._waits.append((function, failed))
        self.flush(0.0)
        return True

    def call(self, function: Callable[[], Any], **_: Any) -> Any:
        """Call the function now. Raises FileSystemSilent if the file system does not answer."""
        if not self.answers:
            raise FileSystemSilent(self.where, 1.0)
        return function()

    def flush(self, seconds: float) -> bool:
        """Do the waiting writes, if the file system answers; return whether it does."""
        while self.answers and self._waits:
            function, failed = self._waits.pop(0)
            try:
                function()
            except OSError as error:
                failed(error)
        return self.answers

    def report_failures(self) -> None:
        """Do nothing: failures are reported at once."""


class AllFilesInPlace(FileThreads):
    """The file threads of all places, which lie on one file system."""

    def __init__(self, *places: Path) -> None:
        self.thread = FilesInPlace()
        self.threads = (self.thread,)
        self._by_place = dict.fromkeys(places, self.thread)

    def of(self, place: Path) -> FilesInPlace:
        """Return the thread of any place."""
        return self.thread
