"""A rank's shared memory page: 4096 bytes, little-endian, two halves with one writer each.

The rank writes the first half (heartbeat, step, what its snapshot slots hold), the supervisor the second
(what it asks of the rank). Every word is 8 bytes and aligned, so a reader sees the old value or the new one.
The table in words.py says which word is where, and what it means: attributes that are made by a descriptor have their
meaning and unit there. Times in nanoseconds are of time.monotonic_ns(), which all processes of a machine share.
A beat is two stores: no system call, no lock, no allocation.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
from pathlib import Path

from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.descriptors import BoolWord, FloatWord, IntWord, ReadEnum, ReadInt, SecondsWord
from ftlaunch_contract.pages.memory_state import Memory
from ftlaunch_contract.pages.words import NONE, TABLE, WORDS, Lifetime, Words
from ftlaunch_contract.protocol import VERSION, Flag, Phase, Resume
from ftlaunch_contract.saving_request import SavingRequest

__all__ = ["MAGIC", "NONE", "SIZE", "Page", "create_page", "open_pages", "page_path"]

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("cannot use ftlaunch here: the page layout is little-endian")

SIZE = 8 * WORDS
MAGIC = 0x4547415048435446  # b"FTCHPAGE"
# Offsets that are used at every step: an exact int is a faster index than a row of the table.
_STEP = int(words.STEP)
_BEAT = int(words.BEAT)
_STEP_NS = int(words.STEP_NS)
_SEEN = int(words.SEEN_STEPS)
_FLAGS = int(words.FLAGS)
_PHASE = int(words.PHASE)
_OWN_STEPS = int(words.OWN_STEPS)
_OWN_NS = int(words.OWN_NS)
_RESUMED_FROM = int(words.RESUMED_FROM)
_RESUMED_STEP = int(words.RESUMED_STEP)
_PHASES = {int(phase): phase for phase in Phase}  # faster than a call of the class
_RESUMES = {int(resume): resume for resume in Resume}
_REQUESTS = slice(8 * words.STOP_AT, 8 * words.EVERY_FROM.end)  # in bytes
_SLOT_STEPS = slice(int(words.SLOT_STEPS), words.SLOT_STEPS.end)


def page_path(directory: Path, rank: int) -> Path:
    """Return the page file of a rank, in a memory directory."""
    return directory / f"page_{rank:05d}"


def create_page(path: Path) -> None:
    """Make an empty page file of mode 0600.

    If there is no room, or this process dies meanwhile, a file that is no valid page stays. The caller may unlink it.

    Raises:
        FileExistsError: the file exists already.
        OSError: the file cannot be made, or there is no room for it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SIZE)  # ENOSPC here instead of SIGBUS later
    finally:
        os.close(fd)
    page = Page(path)
    page.format()
    page.close()


class Page:
    """One mapped page. Setting an attribute writes the word, and every process that has mapped the page sees it."""

    __slots__ = ("_bytes", "_map", "d", "path", "q")  # no __dict__: an attribute cannot shadow a word without a setter

    def __init__(self, path: Path) -> None:
        """Map the page file at `path`.

        Raises:
            OSError: the file cannot be opened.
            ValueError: the file does not have the size of a page.
        """
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != SIZE:
                raise ValueError(f"cannot use {path}: not a page (its size is not {SIZE} bytes)")
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        self._bytes = memoryview(self._map)
        self.q = self._bytes.cast("q")
        self.d = self._bytes.cast("d")

    def format(self) -> None:
        """Empty the page: no attempt, no steps, no request."""
        self._map[:] = bytes(SIZE)
        for row in TABLE:
            self._empty(row)
        self.q[words.VERSION] = VERSION
        self.q[words.MAGIC] = MAGIC  # last: from here on it is a page

    def close(self) -> None:
        """Unmap."""
        self.q.release()
        self.d.release()
        self._bytes.release()
        self._map.close()

    def _empty(self, row: Words) -> None:
        for at in range(row, row.end):
            self.q[at] = row.empty

    @property
    def valid(self) -> bool:
        """Whether this is a page of this version of the protocol."""
        return self.q[words.MAGIC] == MAGIC and self.q[words.VERSION] == VERSION

    # --- the rank's half -------------------------------------------------------------------------------

    pid = ReadInt(words.PID)
    start_time = ReadInt(words.START_TIME)
    attempt = ReadInt(words.ATTEMPT)
    flags = ReadEnum(words.FLAGS, Flag)
    step = ReadInt(words.STEP)
    beat_ns = ReadInt(words.BEAT)
    consumed = IntWord(words.CONSUMED)
    step_seconds = SecondsWord(words.STEP_NS)
    loss = FloatWord(words.LOSS)

    @property
    def total_steps(self) -> int:
        """Return the number of steps that the rank's newest loop is to make; 0 before a loop has begun."""
        return self.q[words.INTENT] & words.MOST_STEPS

    seen_steps = ReadInt(words.SEEN_STEPS)
    save_step = ReadInt(words.SAVE_STEP)
    save_why = ReadInt(words.SAVE_WHY)
    want_save = IntWord(words.WANT_SAVE)
    stop_wanted = IntWord(words.STOP_WANTED)
    shard_step = IntWord(words.SHARD_STEP)
    wanted = IntWord(words.WANTED)

    @property
    def missed_step(self) -> int:
        """Return the newest step that was to be held for the saver but of which this rank has no snapshot, or NONE."""
        return self.q[words.MISSED] - 1

    @property
    def saves_asked(self) -> int:
        """Return the step at which `ask_saves` was called last, or NONE; `asked_saves` is what the script asked for."""
        return self.q[words.SAVES_ASKED] - 1

    @property
    def asked_saves(self) -> SavingRequest | None:
        """Return how the script wants its checkpoints to be saved; None if it has not called `ask_saves`.

        The step of that call is `saves_asked`.
        """
        if self.saves_asked == NONE:
            return None
        steps, nanoseconds, keep = self.q[words.SAVE_EVERY : words.SAVE_KEEP.end]
        return SavingRequest(steps=steps or None, seconds=nanoseconds / 1e9 or None, keep=keep or None)

    def ask_saves(self, step: int, request: SavingRequest) -> None:
        """Publish how the script wants its checkpoints to be saved.

        `saves_asked` is written last: a reader that finds a new step there may trust the rest.

        Args:
            step: number of completed steps.
            request: what `asked_saves` returns from now on.
        """
        self.q[words.SAVE_EVERY] = request.steps or 0
        self.q[words.SAVE_EVERY_NS] = int((request.seconds or 0) * 1e9)
        self.q[words.SAVE_KEEP] = request.keep or 0
        self.q[words.SAVES_ASKED] = step + 1

    def begin(self, attempt: int, pid: int, start_time: int) -> None:
        """Take over the page for a new process: empty what the process before said of itself. The slots stay.

        Args:
            attempt: number of the attempt.
            pid: of the new process.
            start_time: of the new process, in clock ticks since boot (protocol.process_start_time).
        """
        q = self.q
        q[words.ATTEMPT] = NONE
        q[words.PID] = pid
        q[words.START_TIME] = start_time
        for row in TABLE:
            if row.lifetime is Lifetime.PROCESS:
                self._empty(row)
        self.loss = float("nan")
        q[_BEAT] = time.monotonic_ns()
        q[words.ATTEMPT] = attempt  # last: from here on the supervisor trusts the other words

    def vacate(self) -> None:
        """Declare that no process owns the rank's half until the next `begin`. Call this only while no rank lives."""
        self.q[words.ATTEMPT] = NONE

    def beat(self, step: int, now_ns: int) -> None:
        """Write the heartbeat: completed steps, and monotonic time in nanoseconds. Two stores."""
        self.q[_STEP] = step
        self.q[_BEAT] = now_ns

    def end_step(self, step: int, step_ns: int, now_ns: int) -> None:
        """Record a completed step: its number, its duration in nanoseconds, and a beat."""
        q = self.q
        q[_STEP_NS] = step_ns
        q[_STEP] = step
        q[_BEAT] = now_ns

    def observe(self, steps: int, step_ns: int, now_ns: int) -> None:
        """Write the heartbeat of a script without hooks.

        Args:
            steps: optimizer steps seen so far.
            step_ns: duration of the last one, nanoseconds.
            now_ns: monotonic time, nanoseconds.
        """
        q = self.q
        q[_STEP_NS] = step_ns
        q[_SEEN] = steps
        if not q[_FLAGS] & Flag.OBSERVED:
            q[_PHASE] = Phase.TRAIN
            q[_FLAGS] |= Flag.OBSERVED
        q[_BEAT] = now_ns

    def touch(self, now_ns: int) -> None:
        """Write a sign of life without a step, at a monotonic time in nanoseconds."""
        self.q[_BEAT] = now_ns

    def note_own(self, nanoseconds: int) -> None:
        """Add one step's own part: the time, in nanoseconds, in which the rank waited for no other rank."""
        self.q[_OWN_NS] += nanoseconds
        self.q[_OWN_STEPS] += 1

    @property
    def own(self) -> tuple[int, float]:
        """Return the number of steps whose own part was measured, and the sum of these parts in seconds."""
        return self.q[_OWN_STEPS], self.q[_OWN_NS] / 1e9

    @property
    def phase(self) -> Phase:
        """Return what the rank says it is doing. Setting the phase is also a beat.

        Raises:
            ValueError: the word is no phase.
        """
        return _PHASES.get(self.q[_PHASE]) or Phase(self.q[_PHASE])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.q[_PHASE] = phase
        self.q[_BEAT] = time.monotonic_ns()

    def raise_flag(self, flag: Flag) -> None:
        """Set bits of the flags. Only the rank may call this."""
        self.q[_FLAGS] |= flag

    def lower_flag(self, flag: Flag) -> None:
        """Clear bits of the flags. Only the rank may call this."""
        self.q[_FLAGS] &= ~flag

    def slot_steps(self) -> tuple[int, ...]:
        """Return, for each snapshot slot, the step that the slot holds whole, or NONE."""
        return tuple(self.q[_SLOT_STEPS])

    def set_slot(self, slot: int, step: int) -> None:
        """Commit a slot, after its bytes were written; or withdraw it with NONE, before its bytes change."""
        self.q[words.SLOT_STEPS + slot] = step

    @property
    def memory(self) -> Memory:
        """Return how many snapshots the ranks have agreed to hold. Only the page of a node's first rank has it.

        The sizes are in bytes, and the interval is in steps. `needed` is 0 before the ranks have agreed.
        """
        slots, interval, needed, room = self.q[words.MEMORY : words.MEMORY.end]
        return Memory(slots=slots, interval=interval, needed=needed, room=room)

    @memory.setter
    def memory(self, memory: Memory) -> None:
        # Each word is one store of its own. `needed` is written last, because it says that there is an agreement.
        for index in (3, 1, 0, 2):  # room, interval, slots, needed
            self.q[words.MEMORY + index] = memory[index]

    def hold_for_saver(self, step: int, why: int) -> None:
        """Promise that the committed snapshot of `step` stays untouched until `saved` has reached that step.

        Args:
            step: the step of the snapshot.
            why: a member of `protocol.Why`.
        """
        self.q[words.SAVE_WHY] = why
        self.q[words.SAVE_STEP] = step

    def set_resumed(self, kind: Resume, step: int) -> None:
        """Record the step that the rank has restored, and the kind of source that the state came from."""
        self.q[words.RESUMED_STEP] = step
        self.q[words.RESUMED_FROM] = kind  # last: from here on the supervisor reads both

    @property
    def resumed(self) -> tuple[Resume, int]:
        """Return the source of the state that the rank has restored, and the step of that state.

        (UNDECIDED, NONE) before the rank has restored anything.

        Raises:
            ValueError: the first word is no `Resume`.
        """
        kind = self.q[_RESUMED_FROM]
        return _RESUMES.get(kind) or Resume(kind), self.q[_RESUMED_STEP]

    # --- the supervisor's half -------------------------------------------------------------------------

    stop_at = IntWord(words.STOP_AT)
    deadline_ns = IntWord(words.DEADLINE)
    leave = BoolWord(words.LEAVE)
    persist_at = IntWord(words.PERSIST_AT)
    saved = IntWord(words.SAVED)
    reading = IntWord(words.READING)
    granted = IntWord(words.GRANTED)
    sending = IntWord(words.SENDING)
    peer_every = IntWord(words.PEER_EVERY)

    @property
    def announced_interval(self) -> tuple[int, int]:
        """Return the announced steps between snapshots (0: none announced) and the step from which they hold."""
        every = self.q[words.EVERY]  # read first: where this word is new, EVERY_FROM is new as well
        return every, self.q[words.EVERY_FROM]

    def announce_interval(self, every: int, first: int) -> None:
        """Announce the steps between snapshots on all nodes, from the step `first` on, which no rank may have reached.

        The previous announcement must be in force already: a rank keeps to it until `first`.
        """
        self.q[words.EVERY_FROM] = first
        self.q[words.EVERY] = every

    def requests(self) -> bytes:
        """Return the bytes of all that is asked of the rank, for a comparison with an earlier result."""
        return self._map[_REQUESTS]

    def clear_requests(self) -> None:
        """Withdraw all requests and decisions, as at the beginning of an attempt."""
        for row in TABLE:
            if row.lifetime is Lifetime.ATTEMPT:
                self._empty(row)

    def decide_resume(self, kind: Resume, step: int) -> None:
        """Publish where the attempt starts: the step first, the kind last, because ranks wait for the kind."""
        self.q[words.RESUME_STEP] = step
        self.q[words.RESUME_KIND] = kind

    @property
    def resume(self) -> tuple[Resume, int]:
        """Return the source from which ranks are to take their state, and the step of that state.

        The source is UNDECIDED until `decide_resume` was called.

        Raises:
            ValueError: the first word is no `Resume`.
        """
        return Resume(self.q[words.RESUME_KIND]), self.q[words.RESUME_STEP]


def open_pages(directory: Path, ranks: int, first: int = 0) -> list[Page]:
    """Map the pages of `ranks` ranks, beginning with the rank `first`. If one fails, those opened before are closed.

    Raises:
        OSError: a page cannot be opened.
        ValueError: a file is not a page.
    """
    with contextlib.ExitStack() as stack:
        pages = []
        for rank in range(first, first + ranks):
            page = Page(page_path(directory, rank))
            stack.callback(page.close)
            pages.append(page)
        stack.pop_all()
    return pages
