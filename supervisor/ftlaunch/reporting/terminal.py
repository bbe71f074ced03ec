"""Rank output: followed to the terminal, and read back for diagnosis.

Ranks write to files and never wait for a reader. One thread follows the files and writes to the terminal,
so that a terminal that does not take anything (a pager, Ctrl-S) holds up neither ranks nor the loop.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ftlaunch.common.formatting import printable
from ftlaunch.common.line_splitter import LineSplitter, newest_state
from ftlaunch.history.rank_logs import data_from
from ftlaunch.system.descriptors import lead_nowhere
from ftlaunch.system.systemd import LONGEST_JOURNAL_LINE, Priority, harmless, leads_to_journal, with_priority
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

_POLL = 0.2  # seconds between looks at the files: soon enough for a reader
_CUTTING = 0.2  # seconds that the thread has to see how long the files are
# of a core, what looking at the files of very many ranks may take: it is done less often then
_SHARE = 0.01
_SLOWEST_POLL = 5.0
_LONGEST = 64 << 10  # bytes of a line; of a longer one the rest is in the log alone
_BLOCK = 64 << 10


def poll_seconds(cost_seconds: float) -> float:
    """Return how long to wait before the files are looked at again. cost_seconds: of a processor, for one look."""
    return min(max(_POLL, cost_seconds / _SHARE), _SLOWEST_POLL)


class _Followed:
    """One file being followed: where we are, and the line begun."""

    def __init__(self, path: Path, prefix: str, offset: int, longest: int) -> None:
        """longest: bytes of a line that are shown. A rank may never end a line, or print an error of many megabytes."""
        self.path = path
        self.prefix = prefix
        self.offset = offset
        self.wait = True  # for more
        self.until: int | None = None  # what comes after this offset is not shown
        self.splitter = LineSplitter(longest, long_lines="cut", overwrites=True)

    def size(self) -> int:
        """Return how long the file is; where it is read to, where its file system does not tell."""
        try:
            return self.path.stat().st_size
        except OSError:
            return self.offset

    def read(self) -> bytes:
        """What has been added, a block at most."""
        most = _BLOCK if self.until is None else min(_BLOCK, self.until - self.offset)
        if most <= 0:
            return b""
        try:
            if self.path.stat().st_size <= self.offset:  # in most looks, and opening it would cost ten times as much
                return b""
            with open_regular(self.path) as file:
                found = data_from(file.fileno(), self.offset)  # behind a hole, where log_max_size has made one
                if found is None:
                    return b""
                self.offset, end = found
                block = os.pread(file.fileno(), min(most, end - self.offset), self.offset)
        except OSError:  # not there yet; or its file system does not answer now, and is asked again
            return b""
        self.offset += len(block)
        return block


class Terminal:
    """Everything the supervisor shows: its own lines (stderr) and the followed ranks' (stdout)."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        """out, err: standard output and error by default. Raises RuntimeError where no thread can be started.

        Only their descriptors are used: a thread that hangs in a write to a buffered stream holds a lock
        which the interpreter wants when it exits.
        """
        self._out = _descriptor(out or sys.stdout)
        self._err = _descriptor(err or sys.stderr)
        self.live = os.isatty(self._out)
        self._own_to_journal = leads_to_journal(self._err, os.environ)
        # the variable names one stream, standard error where both are connected
        self._ranks_to_journal = self._own_to_journal or leads_to_journal(self._out, os.environ)
        self._longest = LONGEST_JOURNAL_LINE if self._ranks_to_journal else _LONGEST
        self._said: deque[str] = deque(maxlen=1000)
        self._followed: list[_Followed] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._cuts, self._is_cut = False, threading.Event()
        self._closing = False
        self._taken = 0  # writes
        self._cost_seconds = 0.0  # of a processor, that the newest look at the files has taken
        self._bar = False  # the cursor stands behind a progress bar
        self._thread = threading.Thread(target=self._follow, name="ftlaunch-terminal", daemon=True)
        self._thread.start()

    def say(self, line: str, priority: Priority = Priority.INFO) -> None:
        """Show a line of the supervisor's own; never blocks. priority: shown where systemd's journal reads it."""
        line = printable(line)
        self._said.append(with_priority(line[: LONGEST_JOURNAL_LINE // 4], priority) if self._own_to_journal else line)
        self._wake.set()

    def follow(
        self, paths: dict[int, Path], begins: Mapping[int, int] | None = None,
        prefixes: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        """Follow the logs of ranks instead of the present ones, once those are read to their ends.

        Args:
            paths: of each rank, its log.
            begins: of each rank, how many bytes of its log are of an earlier run, and not shown again.
            prefixes: of each rank, what comes before its lines; `[RANK] ` where nothing is given.
        """
        begins = begins or {}
        prefixes = prefixes or {}
        with self._lock:
            for followed in self._followed:
                followed.wait = False
            self._followed += [
                _Followed(path, prefixes.get(rank, f"[{rank}] "), begins.get(rank, 0), self._longest)
                for rank, path in paths.items()
            ]
        self._wake.set()

    def cut(self) -> None:
        """Show no more of the files followed than they hold now: stacks that follow are for the log.

        The thread looks how long they are; it is waited for a moment, as the stacks are asked for next.
        """
        self._is_cut.clear()
        self._cuts = True
        self._wake.set()
        self._is_cut.wait(_CUTTING)

    def close(self, timeout: float = 2.0) -> None:
        """Show what is left; gives up when the terminal takes nothing for `timeout` seconds."""
        self._closing = True
        self._wake.set()
        taken = -1
        while self._thread.is_alive() and self._taken != taken:
            taken = self._taken
            self._thread.join(timeout)

    def _follow(self) -> None:
        while True:
            self._wake.wait(poll_seconds(self._cost_seconds) if self._followed else None)
            self._wake.clear()
            closing = self._closing
            began = time.thread_time()
            moved = self._drain()
            self._cost_seconds = time.thread_time() - began
            if closing and not moved:
                self._finish_all()
            while self._said:
                self._show_own(self._said.popleft())
            if closing and not moved and not self._said:
                return

    def _drain(self) -> bool:
        with self._lock:
            followed = list(self._followed)
        if self._cuts:
            self._cuts = False
            for entry in followed:
                entry.until = entry.size()
            self._is_cut.set()
        moved, ended = False, list[_Followed]()
        for entry in followed:
            block = entry.read()
            if block:
                moved = True
                self._put(self._show(entry, block))
                if not entry.wait:
                    break  # the old attempt to its end first, then the new one
            elif not entry.wait:
                self._end_line(entry)
                ended.append(entry)
        self._forget(ended)
        if moved:
            self._wake.set()  # there may be more
        return moved

    def _end_line(self, entry: _Followed) -> None:
        """Show a line that was begun and is not ended any more."""
        if entry.splitter.rest:
            self._put(self._show(entry, b"\n"))

    def _forget(self, ended: list[_Followed]) -> None:
        """Follow these files no more."""
        over = {id(entry) for entry in ended}
        if over:
            with self._lock:  # `follow` adds to the list meanwhile
                self._followed = [entry for entry in self._followed if id(entry) not in over]

    def _finish_all(self) -> None:
        ended = list(self._followed)
        for entry in ended:
            self._end_line(entry)
        self._forget(ended)

    def _show(self, entry: _Followed, block: bytes) -> str:
        """What to write for a block that was read."""
        shown = []
        lines = entry.splitter.split(block)
        if self._ranks_to_journal:
            lines = [piece for line in lines for piece in _pieces(harmless(line), self._longest)]
        for line in lines:
            text = newest_state(line).decode(errors="replace")
            shown.append(f"{self._clear()}{entry.prefix}{text}\n")
        begun = entry.splitter.rest
        if self.live and b"\r" in begun and (state := newest_state(begun)):  # a progress bar
            shown.append(f"\r\x1b[K{entry.prefix}{state.decode(errors='replace')}")
            self._bar = True
        return "".join(shown)

    def _clear(self) -> str:
        """What clears the progress bar that the cursor stands behind."""
        shown, self._bar = self._bar, False
        return "\r\x1b[K" if shown else ""

    def _put(self, text: str) -> None:
        try:
            atomic.write_all(self._out, text.encode(errors="replace"))
            self._taken += 1
        except OSError:  # SSH is lost, or a pipe is closed; the logs have everything
            lead_nowhere(self._out)

    def _show_own(self, line: str) -> None:
        if clear := self._clear():
            self._put(clear)
        try:
            atomic.write_all(self._err, f"{line}\n".encode(errors="replace"))
            self._taken += 1
        except OSError:
            lead_nowhere(self._err)


def _pieces(line: bytes, most: int) -> list[bytes]:
    return [line[begin : begin + most] for begin in range(0, len(line), most)] or [b""]


def _descriptor(stream: TextIO | None) -> int:
    """Where a stream goes; nowhere for one that was closed before the program began."""
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if stream is None else stream.fileno()
