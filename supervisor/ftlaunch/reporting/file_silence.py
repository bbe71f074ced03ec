"""Tells of file systems that do not answer the supervisor, and has errors of what was written beside the loop told."""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.files import FilesAnswer, FilesSilent
from ftlaunch.system.file_thread import FileThread, FileThreads

_FIRST = 2.0
"""seconds without an answer until it is told; then after twice as long each time"""


class FileSilence:
    """Tells when a file system of the job gives no answer, or refuses to be written, and when that is over."""

    def __init__(self, files: FileThreads, tell: Callable[[JobEvent], None]) -> None:
        self._files = files
        self._watched = [_Watched(thread, tell) for thread in files.threads]

    def look(self) -> None:
        """Tell what has failed, and which file systems have been silent for too long."""
        self._files.tell_failures()
        for watched in self._watched:
            watched.look()


class _Watched:
    """One file system."""

    def __init__(self, thread: FileThread, tell: Callable[[JobEvent], None]) -> None:
        self._thread, self._tell = thread, tell
        self._due, self._longest = _FIRST, 0.0
        self._refused = 0

    def look(self) -> None:
        silent = self._thread.silent_seconds
        if silent >= self._due:
            self._due = 2 * self._due
            self._tell(FilesSilent(self._thread.where, silent, self._thread.waiting))
        is_news = self._due > _FIRST or self._thread.refused > self._refused
        if is_news and silent < self._longest:
            lost, self._refused = self._thread.refused - self._refused, self._thread.refused
            self._tell(FilesAnswer(self._thread.where, self._longest, lost))
            self._due, silent = _FIRST, 0.0
        self._longest = silent
