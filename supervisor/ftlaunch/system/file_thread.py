"""Touches files in threads of their own, one for each file system, so that one that stands still holds nobody up.

A call to a file system that does not answer (NFS whose server is gone, FUSE whose daemon is stopped) cannot be broken
off, and comes back when the file system does. The event loop must not wait for that: the nodes of a job, the control
socket and the ranks' ends are heard there. What is written is queued here, in the order in which it was asked for; what
must be known at once is asked for, and waited for, for a moment only.
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

PATIENCE = 0.5
"""seconds without an answer, after which a file system is taken for one that stands still"""
MOST_BYTES = 32 << 20
"""that wait to be written, at most"""
_SLICE = 0.2
"""seconds between two calls of `while_waiting`"""


class FileSystemSilent(TimeoutError):
    """A file system does not answer; what was asked of it may still be done once it does."""

    def __init__(self, where: Path, seconds: float) -> None:
        """seconds: since when the oldest call has been waiting for an answer."""
        super().__init__(errno.ETIMEDOUT, f"its file system has not answered for {seconds:.1f} s", str(where))


class _Task:
    """One function to be called by the thread."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.size = 0
        self.replaces: str | None = None
        self.failed: Callable[[OSError], None] | None = None
        self.give_back: Callable[[Any], None] | None = None
        self.is_done = self.is_abandoned = False
        self.result: Any = None
        self.error: Exception | None = None


class FileThread:
    """Touches the files of one file system, one after another, and in the order in which it was asked."""

    def __init__(self, where: Path) -> None:
        """Start the thread. where: names the file system in messages. Raises OSError where no thread can be started."""
        self.where = where
        self._changed = threading.Condition()
        self._tasks: deque[_Task] = deque()
        self._begun: float | None = None
        self._bytes = 0
        self._failures: deque[tuple[Callable[[OSError], None], Exception]] = deque()
        self._is_closing = False
        self.refused = 0
        """writes that were not taken, as too many were waiting"""
        try:
            threading.Thread(target=self._run, name="ftlaunch-files", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, "no thread can be started", str(where)) from error

    # --- for the event loop: nothing here waits for longer than is said -----------------------------------------

    def write(
        self,
        function: Callable[[], object],
        failed: Callable[[OSError], None],
        *,
        size: int = 0,
        replaces: str | None = None,
    ) -> bool:
        """Have something written, without waiting for it; return False where too much waits already.

        Args:
            function: writes; may raise OSError.
            failed: is told the error, by `tell_failures`.
            size: bytes that are kept in memory until then.
            replaces: names a file that is written as a whole: of two versions that wait the newer one is written.
        """
        with self._changed:
            waiting = self._waiting_version(replaces)
            if waiting is not None:
                waiting.function, waiting.failed = function, failed
                return True
            if self._bytes + size > MOST_BYTES:
                self.refused += 1
                return False
            task = _Task(function)
            task.size, task.replaces, task.failed = size, replaces, failed
            self._bytes += size
            self._tasks.append(task)
            self._changed.notify_all()
        return True

    def _waiting_version(self, name: str | None) -> _Task | None:
        """Return the write of a whole file that waits; there may be very many lines of the journal beside it."""
        if name is None:
            return None
        return next((task for task in self._tasks if task.replaces == name), None)

    def call(
        self,
        function: Callable[[], Result],
        *,
        patience: float = PATIENCE,
        give_back: Callable[[Result], None] | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> Result:
        """Return what a function returns that touches files, or raise what it raises.

        Raises FileSystemSilent where there is no answer in time, and at once where an earlier call has waited for so
        long already. The function may still be called, or go on: it must do no harm then.

        Args:
            function: is called by the thread.
            patience: seconds.
            give_back: takes a result that comes too late (a descriptor to be closed).
            while_waiting: is called every fifth of a second.
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
        """Wait for a task, or for a slice of the time that it has. Raises FileSystemSilent."""
        with self._changed:
            left = until - time.monotonic()
            self._changed.wait_for(lambda: task.is_done, min(left, _SLICE) if is_sliced else left)
            if not task.is_done and time.monotonic() >= until:
                task.is_abandoned = True
                raise FileSystemSilent(self.where, self.silent_seconds)
            return task.is_done

    def flush(self, seconds: float) -> bool:
        """Wait until nothing waits to be written, or for so many seconds; return whether all is written."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds)

    def _is_idle(self) -> bool:
        return self._begun is None and not self._tasks

    def tell_failures(self) -> None:
        """Tell of the writes that have failed since the last time. Raises what is no OSError: a bug."""
        while self._failures:
            failed, error = self._failures.popleft()
            if not isinstance(error, OSError):
                raise error
            failed(error)

    @property
    def silent_seconds(self) -> float:
        """For how long the call under way has not come back; 0 where there is none."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    @property
    def waiting(self) -> int:
        """How many writes wait, the one under way included."""
        with self._changed:
            return sum(task.failed is not None for task in self._tasks) + (self._begun is not None)

    def close(self) -> None:
        """Let the thread end once nothing waits any more. Waits for nothing."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._next()) is not None:
            if not task.is_abandoned:
                try:
                    task.result = task.function()
                except Exception as error:  # noqa: BLE001 - any: it is raised where the result is asked for
                    task.error = error
            self._end(task)

    def _next(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._is_closing)
            if not self._tasks:
                return None
            self._begun = time.monotonic()
            return self._tasks.popleft()

    def _end(self, task: _Task) -> None:
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
    """The threads of a job: places that lie on one file system share one."""

    def __init__(self, places: Iterable[Path]) -> None:
        """places: directories, not all of which need to be there yet. Raises OSError."""
        self._by_place: dict[Path, FileThread] = {}
        by_device: dict[int, FileThread] = {}
        for place in places:
            device = next(part for part in (place, *place.parents) if part.exists()).stat().st_dev
            if device not in by_device:
                by_device[device] = FileThread(place)
            self._by_place[place] = by_device[device]
        self.threads = tuple(by_device.values())

    def of(self, place: Path) -> FileThread:
        """Return the thread that touches one of the places."""
        return self._by_place[place]

    @property
    def places(self) -> tuple[Path, ...]:
        """The directories that there are threads for."""
        return tuple(self._by_place)

    def flush(self, seconds: float) -> bool:
        """Wait for all threads together, for so many seconds; return whether all is written."""
        until = time.monotonic() + seconds
        is_written = True
        for thread in self.threads:
            is_written = thread.flush(max(until - time.monotonic(), 0.0)) and is_written
        return is_written

    def tell_failures(self) -> None:
        """Tell of all writes that have failed since the last time."""
        for thread in self.threads:
            thread.tell_failures()

    def close(self) -> None:
        """Let the threads end."""
        for thread in self.threads:
            thread.close()
