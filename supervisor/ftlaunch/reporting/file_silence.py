"""Reports file systems that do not answer the supervisor, and errors of writes that were made beside the event loop.

The reporter calls `FileSilence.poll` in every turn of the loop, in the main thread; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.files import FilesAnswer, FilesSilent
from ftlaunch.system.file_thread import FileThread, FileThreads

_FIRST_REPORT_SECONDS = 2.0
"""time without an answer until the first report; the next reports follow each at twice the time of the last"""


class FileSilence:
    """Reports when a file system of the job gives no answer, and when the file system answers again."""

    def __init__(self, files: FileThreads, report: Callable[[JobEvent], None]) -> None:
        self._files = files
        self._watched = [_Watched(thread, report) for thread in files.threads]

    def poll(self) -> None:
        """Report writes that have failed, file systems that are silent for too long, and those that answer again."""
        self._files.report_failures()
        for watched in self._watched:
            watched.poll()


class _Watched:
    """Observes one file system."""

    def __init__(self, thread: FileThread, report: Callable[[JobEvent], None]) -> None:
        self._thread = thread
        self._report = report
        self._due_seconds = _FIRST_REPORT_SECONDS  # length of the silence at which it is reported next
        self._last_silent_seconds = 0.0  # the silence at the last poll
        self._refused = 0  # writes that were refused for want of memory and are reported

    def poll(self) -> None:
        silent_seconds = self._thread.silent_seconds
        if silent_seconds >= self._due_seconds:
            self._due_seconds = 2 * self._due_seconds
            self._report(FilesSilent(place=self._thread.where, seconds=silent_seconds, waiting=self._thread.waiting))
        is_news = self._due_seconds > _FIRST_REPORT_SECONDS or self._thread.refused > self._refused
        if is_news and silent_seconds < self._last_silent_seconds:
            refused = self._thread.refused
            lost = refused - self._refused
            self._refused = refused
            self._report(FilesAnswer(place=self._thread.where, seconds=self._last_silent_seconds, lost=lost))
            self._due_seconds = _FIRST_REPORT_SECONDS
            silent_seconds = 0.0
        self._last_silent_seconds = silent_seconds
