"""Reads and writes files in one thread for each file system, so that a silent file system does not stop the event loop.

A call to a file system that does not answer (NFS without its server, FUSE without its daemon) cannot be interrupted,
and returns when the file system answers again. The event loop must not wait for that, because it also serves the nodes
of the job, the control socket and the ends of ranks. Writes are therefore queued, in the order in which they were
requested (`FileThread.write`). Results that are needed at once are waited for, but only for a moment
(`FileThread.call`).
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

PATIENCE_SECONDS = 0.5
"""seconds without an answer after which a file system counts as silent"""
MOST_BYTES = 32 << 20
"""most bytes that may wait to be written"""
_SLICE_SECONDS = 0.2
"""seconds between two calls of `while_waiting`"""


class FileSystemSilent(TimeoutError):
    """A file system does not answer. The requested operation may still happen once the file system answers."""

    def __init__(self, where: Path, seconds: float) -> None:
        """Describe a silent file system.

        Args:
            where: a path on the file system.
            seconds: how long the oldest call has been waiting for an answer.
        """
        super().__init__(errno.ETIMEDOUT, f"its file system has not answered for {seconds:.1f} s", str(where))


class _Task:
    """One function to be called by the thread. All attributes are guarded by the lock of the FileThread."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.size = 0  # bytes that wait to be written
        self.replaces: str | None = None  # name of a file that is written as a whole
        self.failed: Callable[[OSError], None] | None = None  # set for writes only
        self.give_back: Callable[[Any], None] | None = None  # frees a result that comes too late
        self.is_done = False
        self.is_abandoned = False  # the caller does not wait any longer
        self.result: Any = None
        self.error: Exception | None = None


class FileThread:
    """Reads and writes the files of one file system, one operation after another, in the order of the requests."""

    def __init__(self, where: Path) -> None:
        """Start the thread.

        Args:
            where: path that names the file system in messages.

        Raises:
            OSError: no thread can be started.
        """
        self.where = where
        self._changed = threading.Condition()
        self._tasks: deque[_Task] = deque()
        self._begun: float | None = None  # monotonic seconds at which the call under way began
        self._bytes = 0  # that wait to be written
        self._failures: deque[tuple[Callable[[OSError], None], Exception]] = deque()
        self._is_closing = False
        self.refused = 0
        """number of writes that were refused because too much was waiting"""
        try:
            threading.Thread(target=self._run, name="ftlaunch-files", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, "no thread can be started", str(where)) from error

    # --- for the event loop -------------------------------------------------------------------------------------

    def write(
        self,
        function: Callable[[], object],
        failed: Callable[[OSError], None],
        *,
        size: int = 0,
        replaces: str | None = None,
    ) -> bool:
        """Queue a write without waiting for it.

        Args:
            function: writes; may raise OSError.
            failed: called by `report_failures` with the error if the write fails.
            size: bytes that are kept in memory until the write is done.
            replaces: name of a file that is written as a whole. Of two versions that wait, only the newer is written.

        Returns:
            Whether the write was queued; False if too much is waiting already.
        """
        with self._changed:
            waiting = self._find_waiting(replaces)
            if waiting is not None:
                waiting.function = function
                waiting.failed = failed
                return True
            if self._bytes + size > MOST_BYTES:
                self.refused += 1
                return False
            task = _Task(function)
            task.size = size
            task.replaces = replaces
            task.failed = failed
            self._bytes += size
            self._tasks.append(task)
            self._changed.notify_all()
        return True

    def _find_waiting(self, name: str | None) -> _Task | None:
        """Return the waiting write of the whole file with this name; None if there is none, or `name` is None."""
        if name is None:
            return None
        return next((task for task in self._tasks if task.replaces == name), None)

    def call(
        self,
        function: Callable[[], Result],
        *,
        patience: float = PATIENCE_SECONDS,
        give_back: Callable[[Result], None] | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> Result:
        """Call a function that touches files in the thread, and return its result.

        Args:
            function: the function. It may still be called, or go on, after this call has given up, and must then do no
                harm.
            patience: most seconds to wait.
            give_back: called with a result that comes too late, such as a descriptor to be closed.
            while_waiting: called every fifth of a second.

        Raises:
            FileSystemSilent: there is no answer in time. If an earlier call has waited longer than `patience` already,
                this is raised at once.
            Exception: whatever `function` raises.
        """
        task = _Task(function)
        task.give_back = give_back
        until = time.monotonic() + patience
        with self._changed:
            if self.silent_seconds >= patience:
                raise FileSystemSilent(self.where, self.silent_seconds)
            self._tasks.append(task)
            self._changed.notify_all()
        while not self._has_ended(task, until, while_waiting is not None):
            if while_waiting is not None:
                while_waiting()
        if task.error is not None:
            raise task.error
        result: Result = task.result
        return result

    def _has_ended(self, task: _Task, until: float, is_sliced: bool) -> bool:
        """Wait for a task, and return whether it is done.

        Args:
            task: the task.
            until: monotonic seconds at which the caller's patience ends.
            is_sliced: return after _SLICE_SECONDS, even if the task is not done.

        Raises:
            FileSystemSilent: patience is at its end. The task counts as abandoned.
        """
        with self._changed:
            left = until - time.monotonic()
            self._changed.wait_for(lambda: task.is_done, min(left, _SLICE_SECONDS) if is_sliced else left)
            if not task.is_done and time.monotonic() >= until:
                task.is_abandoned = True
                raise FileSystemSilent(self.where, self.silent_seconds)
            return task.is_done

    def flush(self, seconds: float) -> bool:
        """Wait up to `seconds` for all queued operations, and return whether all are done."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds)

    def _is_idle(self) -> bool:
        return self._begun is None and not self._tasks

    def report_failures(self) -> None:
        """Report the writes that have failed since the last call, to the functions that were given with them.

        Raises:
            Exception: a write has raised something other than OSError, which is a bug.
        """
        while self._failures:
            failed, error = self._failures.popleft()
            if not isinstance(error, OSError):
                raise error
            failed(error)

    @property
    def silent_seconds(self) -> float:
        """Seconds for which the call under way has not returned; 0 if there is none."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    @property
    def waiting(self) -> int:
        """Number of waiting writes, and the operation under way."""
        with self._changed:
            return sum(task.failed is not None for task in self._tasks) + (self._begun is not None)

    def close(self) -> None:
        """Let the thread end once all queued operations are done. Never waits."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Call the functions of the queued tasks until the thread is closed."""
        while (task := self._next()) is not None:
            if not task.is_abandoned:
                try:
                    task.result = task.function()
                except Exception as error:  # noqa: BLE001 - any error is raised again by `call` or `report_failures`
                    task.error = error
            self._finish(task)

    def _next(self) -> _Task | None:
        """Wait for a task, and mark it as under way; None once the thread is closed and nothing is queued."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._is_closing)
            if not self._tasks:
                return None
            self._begun = time.monotonic()
            return self._tasks.popleft()

    def _finish(self, task: _Task) -> None:
        """Mark a task as done, wake its caller, record a failed write, and free a result that comes too late."""
        with self._changed:
            self._begun = None
            self._bytes -= task.size
            task.is_done = True
            if task.failed is not None and task.error is not None:
                self._failures.append((task.failed, task.error))
            self._changed.notify_all()
        if task.is_abandoned and task.give_back is not None and task.result is not None:
            task.give_back(task.result)


class FileThreads:
    """The file threads of a job. Directories on the same file system share one thread."""

    def __init__(self, places: Iterable[Path]) -> None:
        """Start a thread for each file system.

        Args:
            places: directories, which need not exist yet.

        Raises:
            OSError: a directory cannot be examined, or no thread can be started.
        """
        self._by_place: dict[Path, FileThread] = {}
        by_device: dict[int, FileThread] = {}
        for place in places:
            device = next(part for part in (place, *place.parents) if part.exists()).stat().st_dev
            if device not in by_device:
                by_device[device] = FileThread(place)
            self._by_place[place] = by_device[device]
        self.threads = tuple(by_device.values())

    def of(self, place: Path) -> FileThread:
        """Return the thread for one of the directories that were given at the start."""
        return self._by_place[place]

    @property
    def places(self) -> tuple[Path, ...]:
        """The directories that were given at the start."""
        return tuple(self._by_place)

    def flush(self, seconds: float) -> bool:
        """Wait up to `seconds` for the queued operations of all threads, and return whether all are done."""
        until = time.monotonic() + seconds
        is_written = True
        for thread in self.threads:
            is_written = thread.flush(max(until - time.monotonic(), 0.0)) and is_written
        return is_written

    def report_failures(self) -> None:
        """Report the writes of all threads that have failed since the last call."""
        for thread in self.threads:
            thread.report_failures()

    def close(self) -> None:
        """Let the threads end once all queued operations are done. Never waits."""
        for thread in self.threads:
            thread.close()
