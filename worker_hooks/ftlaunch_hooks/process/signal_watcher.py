"""Waits for SIGTERM and for the end of the supervisor in a thread; no work is done in a signal handler.

A Python handler does not run while the main thread is inside a collective. Therefore the C-level handler writes the
signal's number to a wake-up descriptor, and a thread that waits for this descriptor acts within milliseconds.
"""

from __future__ import annotations

import _thread
import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable

from ftlaunch_hooks.process.parent_watch import supervisor_pidfd

_MARK = b"\0"  # no signal's number
_PATIENCE_SECONDS = 10.0


_HOLD: int = signal.SIGRTMAX - 2
"""a signal that nobody sends: its handler holds the main thread, whatever handler the script has for SIGTERM"""

_is_held = False  # whether the main thread is to run no more Python code


def _ignore(signum: int, frame: object) -> None:
    """Do nothing, as the Python-level handler: the wake-up descriptor tells the watcher."""


def _wait_if_held(signum: int, frame: object) -> None:
    """Wait until the process ends, if the thread is held."""
    if _is_held:
        threading.Event().wait()


def hold_main_thread() -> None:
    """Keep the main thread from running Python code until the process ends.

    Call this in another thread, while there is a Watcher. A call into a library goes on to its end; the interpreter
    runs the handler after it, and otherwise at the next call or turn of a loop. A handler of SIGTERM that the script
    has set runs before, if a SIGTERM has arrived. Where the script uses the signal of this module for itself, nothing
    happens.
    """
    global _is_held  # noqa: PLW0603 - a process has one main thread
    if signal.getsignal(_HOLD) is _wait_if_held:
        _is_held = True
        _thread.interrupt_main(_HOLD)  # type: ignore[arg-type] # an int will do: this one has no name


def _free_signal() -> None:
    """Take the handler away with which the main thread is held."""
    if signal.getsignal(_HOLD) is _wait_if_held:
        signal.signal(_HOLD, signal.SIG_DFL)


class Watcher:
    """Waits for SIGTERM and for the supervisor's end, in a thread of its own."""

    def __init__(self, on_term: Callable[[int], None], on_orphaned: Callable[[], None]) -> None:
        """Install the handler and start the thread. Must be called in the main thread.

        Args:
            on_term: called in the watcher's thread with the signal's number, at each SIGTERM.
            on_orphaned: called in the watcher's thread when the supervisor has ended.

        Raises:
            ProcessLookupError: the supervisor has ended already.
        """
        self._on_term = on_term
        self._on_orphaned = on_orphaned
        self._read, write = socket.socketpair()
        self._write = write
        write.setblocking(False)
        self._read.setblocking(False)
        self._previous = signal.getsignal(signal.SIGTERM)
        self._chained = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _ignore)
        if signal.getsignal(_HOLD) is signal.SIG_DFL:
            signal.signal(_HOLD, _wait_if_held)
        self._forking = threading.local()  # `mask`: the signals that the forking thread blocked before the fork
        os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._forget)
        self._supervisor = supervisor_pidfd()
        self._closing = False
        self._caught_up = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ftlaunch-watcher", daemon=True)
        self._thread.start()

    def _block(self) -> None:
        """Block SIGTERM before a fork, so that a SIGTERM to the child waits until the child has another handler."""
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _forget(self) -> None:
        """Detach a forked child: a signal to the child must not reach the rank's watcher."""
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is _ignore:
            signal.signal(signal.SIGTERM, self._previous)
        _free_signal()
        self._unblock()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if self._supervisor is not None:
                selector.register(self._supervisor, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._supervisor:
                        selector.unregister(self._supervisor)
                        self._on_orphaned()
                    elif self._read_signals():
                        return

    def _read_signals(self) -> bool:
        """Read signal numbers and act on them. Return True if the watcher is closing."""
        numbers = self._read.recv(64)
        if self._closing or not numbers:
            return True
        if self._chained != -1 and (signals := numbers.replace(_MARK, b"")):
            os.write(self._chained, signals)  # another library had set a wake-up descriptor before
        if signal.SIGTERM in numbers:
            self._on_term(signal.SIGTERM)
        if _MARK in numbers:
            self._caught_up.set()
        return False

    def catch_up(self) -> None:
        """Wait until the watcher has dealt with every earlier signal, 10 seconds at most.

        To be called once, from another thread than the watcher's.
        """
        self._write.send(_MARK)
        self._caught_up.wait(_PATIENCE_SECONDS)

    def close(self) -> None:
        """Restore the previous handler and wake-up descriptor, and end the thread. Main thread only."""
        signal.set_wakeup_fd(self._chained, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._previous)
        _free_signal()
        self._closing = True
        self._write.send(_MARK)
        self._thread.join()
        self._read.close()
        self._write.close()
        if self._supervisor is not None:
            os.close(self._supervisor)
