"""Writes to the terminal: the supervisor's own lines, and the output of the ranks, which is followed in their logs.

Ranks write to files and never wait for a reader. One thread of the supervisor follows the files and does all writing to
the terminal, so that a terminal that takes nothing (a pager, Ctrl-S) holds up neither the ranks nor the event loop. The
public methods of `Terminal` are called in the main thread.
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

_POLL_SECONDS = 0.2
"""time between two polls of the files, short enough for a reader"""
_CUT_SECONDS = 0.2
"""how long `cut` waits until the thread has seen how long the files are"""
_SHARE = 0.01
"""of a core: what looking at the files of very many ranks may cost; beyond this the looks are less frequent"""
_SLOWEST_POLL_SECONDS = 5.0
_LONGEST = 64 << 10
"""bytes of a line that are shown; the rest of a longer line is only in the log"""
_BLOCK = 64 << 10
"""bytes to read at a time"""


def poll_seconds(cost_seconds: float) -> float:
    """Return how long to wait until the next look at the files. cost_seconds: processor time of one look."""
    return min(max(_POLL_SECONDS, cost_seconds / _SHARE), _SLOWEST_POLL_SECONDS)


class _Followed:
    """A file that is followed: how far it is read, and the unfinished line. Used by the thread only."""

    def __init__(self, path: Path, prefix: str, offset: int, longest: int) -> None:
        """Read from `offset`.

        Args:
            path: the log.
            prefix: stands before each line on the terminal.
            offset: where to begin, in bytes.
            longest: bytes of a line that are shown. A rank may never end a line, or may print an error of many
                megabytes.
        """
        self.path = path
        self.prefix = prefix
        self.offset = offset  # in bytes; what was read so far
        self.wait = True  # whether the file may still grow
        self.until: int | None = None  # the offset after which nothing is shown
        self.splitter = LineSplitter(longest, long_lines="cut", overwrites=True)

    def size(self) -> int:
        """Return the size of the file in bytes; the offset if the file system gives an error."""
        try:
            return self.path.stat().st_size
        except OSError:
            return self.offset

    def read(self) -> bytes:
        """Read what was added to the file, up to a block; b"" if there is nothing new."""
        most = _BLOCK if self.until is None else min(_BLOCK, self.until - self.offset)
        if most <= 0:
            return b""
        try:
            if self.path.stat().st_size <= self.offset:  # the most frequent case; opening would cost ten times as much
                return b""
            with open_regular(self.path) as file:
                found = data_from(file.fileno(), self.offset)  # skips the hole that log_max_size may have made
                if found is None:
                    return b""
                self.offset, end = found
                block = os.pread(file.fileno(), min(most, end - self.offset), self.offset)
        except OSError:  # the file is not there yet, or its file system fails for now; the next look tries again
            return b""
        self.offset += len(block)
        return block


class Terminal:
    """Shows the supervisor's own lines (on stderr) and the followed ranks' output (on stdout)."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        """Start the thread that writes.

        Only the descriptors of the streams are used. A thread that hangs in a write to a buffered stream would hold a
        lock that the interpreter needs to exit.

        Args:
            out: takes the ranks' output; None: standard output.
            err: takes the supervisor's lines; None: standard error.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._out = _descriptor(out or sys.stdout)
        self._err = _descriptor(err or sys.stderr)
        self.live = os.isatty(self._out)
        self._own_to_journal = leads_to_journal(self._err, os.environ)
        # JOURNAL_STREAM names one stream only: standard error, if both streams lead to the journal.
        self._ranks_to_journal = self._own_to_journal or leads_to_journal(self._out, os.environ)
        self._longest = LONGEST_JOURNAL_LINE if self._ranks_to_journal else _LONGEST
        self._own_lines: deque[str] = deque(maxlen=1000)
        self._followed: list[_Followed] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._cut_is_asked = False
        self._is_cut = threading.Event()
        self._closing = False
        self._write_count = 0  # writes that the terminal has taken
        self._cost_seconds = 0.0  # processor time of the newest look at the files
        self._bar = False  # whether the cursor stands behind a progress bar
        self._thread = threading.Thread(target=self._follow, name="ftlaunch-terminal", daemon=True)
        self._thread.start()

    def say(self, line: str, priority: Priority = Priority.INFO) -> None:
        """Show a line of the supervisor. Never waits; of more than 1000 lines that wait, the oldest are dropped.

        Args:
            line: the line.
            priority: priority of the line in systemd's journal, if standard error leads there.
        """
        line = printable(line)
        self._own_lines.append(
            with_priority(line[: LONGEST_JOURNAL_LINE // 4], priority) if self._own_to_journal else line
        )
        self._wake.set()

    def follow(
        self, paths: dict[int, Path], begins: Mapping[int, int] | None = None,
        prefixes: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        """Follow new logs, after the logs followed so far are read to their ends.

        Args:
            paths: rank -> log.
            begins: rank -> number of bytes at the beginning of the log that are not shown.
            prefixes: rank -> what comes before each line; `[RANK] ` for a rank without an entry.
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
        """Show nothing that the followed files get from now on, because stacks are written there next.

        Waits up to `_CUT_SECONDS` until the thread has noted the sizes of the files.
        """
        self._is_cut.clear()
        self._cut_is_asked = True
        self._wake.set()
        self._is_cut.wait(_CUT_SECONDS)

    def close(self, timeout: float = 2.0) -> None:
        """Show what is left, and end the thread. Gives up if the terminal takes nothing for `timeout` seconds."""
        self._closing = True
        self._wake.set()
        count_before = -1
        while self._thread.is_alive() and self._write_count != count_before:
            count_before = self._write_count
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
            while self._own_lines:
                self._show_own(self._own_lines.popleft())
            if closing and not moved and not self._own_lines:
                return

    def _drain(self) -> bool:
        """Read a block of each followed file and show it; return whether there was anything to read."""
        with self._lock:
            followed = list(self._followed)
        if self._cut_is_asked:
            self._cut_is_asked = False
            for entry in followed:
                entry.until = entry.size()
            self._is_cut.set()
        moved = False
        ended: list[_Followed] = []
        for entry in followed:
            block = entry.read()
            if block:
                moved = True
                self._put(self._show(entry, block))
                if not entry.wait:
                    break  # the logs of the old attempt are shown to their ends before those of the new one
            elif not entry.wait:
                self._end_line(entry)
                ended.append(entry)
        self._forget(ended)
        if moved:
            self._wake.set()  # there may be more
        return moved

    def _end_line(self, entry: _Followed) -> None:
        """Show the unfinished line of a file that will not grow any more."""
        if entry.splitter.rest:
            self._put(self._show(entry, b"\n"))

    def _forget(self, ended: list[_Followed]) -> None:
        """Stop following these files."""
        ended_ids = {id(entry) for entry in ended}
        if ended_ids:
            with self._lock:  # the main thread may add files at the same time
                self._followed = [entry for entry in self._followed if id(entry) not in ended_ids]

    def _finish_all(self) -> None:
        ended = list(self._followed)
        for entry in ended:
            self._end_line(entry)
        self._forget(ended)

    def _show(self, entry: _Followed, block: bytes) -> str:
        """Return what to write to the terminal for a block that was read."""
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
        """Return the control characters that clear a progress bar before the cursor; "" if there is none."""
        is_shown = self._bar
        self._bar = False
        return "\r\x1b[K" if is_shown else ""

    def _put(self, text: str) -> None:
        try:
            atomic.write_all(self._out, text.encode(errors="replace"))
            self._write_count += 1
        except OSError:  # SSH is lost, or a pipe is closed; the logs have everything
            lead_nowhere(self._out)

    def _show_own(self, line: str) -> None:
        if clear := self._clear():
            self._put(clear)
        try:
            atomic.write_all(self._err, f"{line}\n".encode(errors="replace"))
            self._write_count += 1
        except OSError:
            lead_nowhere(self._err)


def _pieces(line: bytes, most: int) -> list[bytes]:
    """Cut a line into pieces of at most `most` bytes; an empty line is one piece."""
    return [line[begin : begin + most] for begin in range(0, len(line), most)] or [b""]


def _descriptor(stream: TextIO | None) -> int:
    """Return the descriptor of a stream; one of /dev/null for a stream that was closed before the program began."""
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if stream is None else stream.fileno()
