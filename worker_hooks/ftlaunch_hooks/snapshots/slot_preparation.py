"""Prepares the files of a snapshot slot in a thread, before the slot's next snapshot needs them.

Reserving memory, page faults and pinning take ten times as long as the copy of a snapshot. The thread does them piece
by piece while the script trains. Whoever needs the files ends the thread, which takes no longer than one piece, and
does the rest itself, at its own priority.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.snapshots.slot_file import SlotFile

_NICENESS = 10  # by how much the thread's niceness is above that of the thread that starts it
_MOST_NICENESS = 19


class SlotPreparation:
    """A thread that prepares files of a slot. The files belong to the thread until `end` has returned."""

    def __init__(self, files: Mapping[str, SlotFile], on_end: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            files: group -> file.
            on_end: called in the thread when all is prepared, or when there is no room; not if the thread is ended
                before.

        Raises:
            RuntimeError: no further thread can be started.
        """
        self._files = dict(files)
        self._on_end = on_end
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ftlaunch-prepare", daemon=True)
        self._thread.start()
        # A daemon is not waited for, but must not be inside torch when the interpreter has ended.
        atexit.register(self._stop)

    def _run(self) -> None:
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS
        os.setpriority(os.PRIO_PROCESS, 0, min(niceness, _MOST_NICENESS))  # on Linux 0 is the calling thread
        try:
            done = all(self._prepare(file) for file in self._files.values())
        except OSError:
            # The memory is given back at once, as others need it. The snapshot tries again, and says what is wrong.
            for file in self._files.values():
                file.close()
            self._files = {}
            done = True
        if done:
            self._on_end()

    def _prepare(self, file: SlotFile) -> bool:
        """Prepare a file. Return False if the thread is to end before that."""
        if not file.prepare(self._is_ended.is_set):
            return False
        if file.writer is not None and device_port.can_work_beside_capture(file.writer):
            device_port.prepare_thread(file.writer)
            file.pin()
        return True

    def _stop(self) -> None:
        self._is_ended.set()
        self._thread.join()

    def end(self) -> dict[str, SlotFile]:
        """End the thread; return the files that are prepared, in part or wholly, by their groups."""
        self._stop()
        atexit.unregister(self._stop)
        return self._files
