"""A rank's shared memory page: 4096 bytes, little-endian, two halves with one writer each.

The rank writes the first half (heartbeat, step, what its snapshot slots hold), the supervisor the second
(what it asks of the rank). Every field is one aligned 8-byte word, so a reader sees the old value or the
new one. A beat is two stores: no system call, no lock, no allocation.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
from pathlib import Path

from ftlaunch_contract.pages.memory_state import Memory
from ftlaunch_contract.protocol import SLOTS, VERSION, Flag, Phase, Resume

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("cannot use ftlaunch here: the page layout is little-endian")

SIZE = 4096
MAGIC = 0x4547415048435446  # b"FTCHPAGE"
NONE = -1  # "no step" in every field that holds a step

# --- words of the rank's half
_MAGIC, _VERSION, _PID, _START, _ATTEMPT, _PHASE, _STEP, _BEAT, _CONSUMED, _STEP_NS, _LOSS = range(11)
_FLAGS, _SAVE_STEP, _SAVE_WHY, _RESUMED_STEP, _RESUMED_FROM, _STOP_WANTED, _WANT_SAVE, _SHARD, _SEEN = range(11, 20)
_SLOT_STEP = 32  # SLOTS words
# what the ranks agree on among themselves, see memory_budget.py and step_schedule.py; empty when a process begins
ROOM = 40  # 9 words
_MEMORY = 52  # 4 words
AGENDA, AGENDA_WORDS = 64, 64
NUMBERS, _NUMBERS_WORDS = 200, 32  # bad losses (loss_watch.py) and digests of replicas (replica_digests.py)
_OWN_STEPS, _OWN_NS = 232, 233
KNELL = 240  # 8 words, a pthread_mutex_t, see exit_futex.py
# --- words of the supervisor's half
_STOP_AT, _DEADLINE, _LEAVE, _RESUME_KIND, _RESUME_STEP, _PERSIST_AT, _SAVED, _READING = range(256, 264)
_GRANTED = 264


def page_path(directory: Path, rank: int) -> Path:
    """The page file of a rank."""
    return directory / f"page_{rank:05d}"


def create_page(path: Path) -> None:
    """Make an empty page file, mode 0600. Raises FileExistsError where there is one."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SIZE)  # ENOSPC here instead of SIGBUS later
    finally:
        os.close(fd)
    page = Page(path)
    page.format()
    page.close()


class Page:
    """One mapped page. Plain properties: reading one is a load, setting one is a store."""

    def __init__(self, path: Path) -> None:
        """Map the page file at `path`; raises OSError, or ValueError when it is not a page."""
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
        """Empty the page: no attempt, no steps, nothing asked."""
        self._map[:] = bytes(SIZE)
        self.q[_VERSION] = VERSION
        self.q[_PID] = 0
        for word in (_ATTEMPT, _STEP, _SAVE_STEP, _RESUMED_STEP, _WANT_SAVE, _SHARD):
            self.q[word] = NONE
        for slot in range(SLOTS):
            self.q[_SLOT_STEP + slot] = NONE
        self.clear_requests()
        self.q[_READING] = self.q[_GRANTED] = NONE
        self.q[_MAGIC] = MAGIC

    def close(self) -> None:
        """Unmap."""
        self.q.release()
        self.d.release()
        self._bytes.release()
        self._map.close()

    @property
    def valid(self) -> bool:
        """Whether this is a page of this version of the protocol."""
        return self.q[_MAGIC] == MAGIC and self.q[_VERSION] == VERSION

    # --- the rank's half -------------------------------------------------------------------------------

    def begin(self, attempt: int, pid: int, start_time: int) -> None:
        """A new process takes the page: what its predecessor said about itself is forgotten, slots stay."""
        q = self.q
        q[_ATTEMPT] = NONE
        q[_PID], q[_START] = pid, start_time
        q[_FLAGS] = 0
        q[_PHASE] = Phase.STARTUP
        q[_STEP] = q[_SAVE_STEP] = q[_RESUMED_STEP] = q[_WANT_SAVE] = q[_SHARD] = NONE
        q[_RESUMED_FROM] = q[_STOP_WANTED] = q[_CONSUMED] = q[_STEP_NS] = q[_SEEN] = 0
        q[_OWN_STEPS] = q[_OWN_NS] = 0
        self._map[8 * ROOM : 8 * (AGENDA + AGENDA_WORDS)] = bytes(8 * (AGENDA + AGENDA_WORDS - ROOM))
        self._map[8 * NUMBERS : 8 * (NUMBERS + _NUMBERS_WORDS)] = bytes(8 * _NUMBERS_WORDS)
        self.d[_LOSS] = float("nan")
        q[_BEAT] = time.monotonic_ns()
        q[_ATTEMPT] = attempt  # last: from here on the supervisor believes the rest

    def beat(self, step: int, now_ns: int) -> None:
        """The heartbeat: completed steps and monotonic time in nanoseconds. Two stores."""
        self.q[_STEP] = step
        self.q[_BEAT] = now_ns

    def observe(self, steps: int, step_ns: int, now_ns: int) -> None:
        """The heartbeat of a script without hooks: optimizer steps, the last one's nanoseconds, monotonic time."""
        q = self.q
        q[_STEP_NS], q[_SEEN] = step_ns, steps
        if not q[_FLAGS] & Flag.OBSERVED:
            q[_PHASE] = Phase.TRAIN
            q[_FLAGS] |= Flag.OBSERVED
        q[_BEAT] = now_ns

    def touch(self, now_ns: int) -> None:
        """A sign of life that is no step, at a monotonic time."""
        self.q[_BEAT] = now_ns

    def note_own(self, nanoseconds: int) -> None:
        """Add the part of a step that was the rank's own doing."""
        self.q[_OWN_NS] += nanoseconds
        self.q[_OWN_STEPS] += 1

    @property
    def own(self) -> tuple[int, float]:
        """Steps whose own part was measured, and these parts' sum, seconds."""
        return self.q[_OWN_STEPS], self.q[_OWN_NS] / 1e9

    @property
    def seen_steps(self) -> int:
        """Optimizer steps seen in a script without hooks; they begin with 0 in every attempt."""
        return self.q[_SEEN]

    @property
    def pid(self) -> int:
        """Process id of the rank."""
        return self.q[_PID]

    @property
    def start_time(self) -> int:
        """Start time of the rank's process in clock ticks."""
        return self.q[_START]

    @property
    def attempt(self) -> int:
        """The attempt the rank's half speaks of; NONE before the first."""
        return self.q[_ATTEMPT]

    @property
    def phase(self) -> Phase:
        """What the rank says it is doing."""
        return Phase(self.q[_PHASE])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.q[_PHASE] = phase
        self.q[_BEAT] = time.monotonic_ns()

    @property
    def step(self) -> int:
        """Completed steps; NONE before attach() knows."""
        return self.q[_STEP]

    @property
    def beat_ns(self) -> int:
        """Monotonic time of the last beat, nanoseconds."""
        return self.q[_BEAT]

    @property
    def consumed(self) -> int:
        """Samples consumed over all ranks, where a sampler says."""
        return self.q[_CONSUMED]

    @consumed.setter
    def consumed(self, samples: int) -> None:
        self.q[_CONSUMED] = samples

    @property
    def step_seconds(self) -> float:
        """Duration of the last step, seconds; 0 before the first."""
        return self.q[_STEP_NS] / 1e9

    @step_seconds.setter
    def step_seconds(self, seconds: float) -> None:
        self.q[_STEP_NS] = int(seconds * 1e9)

    @property
    def loss(self) -> float:
        """What `job.step_done(loss=...)` said last; NaN before."""
        return self.d[_LOSS]

    @loss.setter
    def loss(self, loss: float) -> None:
        self.d[_LOSS] = loss

    @property
    def flags(self) -> Flag:
        """What the rank says of itself."""
        return Flag(self.q[_FLAGS])

    def raise_flag(self, flag: Flag) -> None:
        """Set bits; the rank only."""
        self.q[_FLAGS] |= flag

    def lower_flag(self, flag: Flag) -> None:
        """Clear bits; the rank only."""
        self.q[_FLAGS] &= ~flag

    def slot_steps(self) -> tuple[int, ...]:
        """For each snapshot slot the step it holds whole, or NONE."""
        return tuple(self.q[_SLOT_STEP : _SLOT_STEP + SLOTS])

    def set_slot(self, slot: int, step: int) -> None:
        """Commit a slot (after its bytes), or withdraw it with NONE (before they change)."""
        self.q[_SLOT_STEP + slot] = step

    @property
    def memory(self) -> Memory:
        """What the ranks have agreed on (rank 0's page)."""
        return Memory(*self.q[_MEMORY : _MEMORY + 4])

    @memory.setter
    def memory(self, memory: Memory) -> None:
        for word in (3, 1, 0, 2):  # `needed` last: it says that there is an agreement
            self.q[_MEMORY + word] = memory[word]

    @property
    def save_step(self) -> int:
        """Newest step whose snapshot is held for the saver; NONE when there is none."""
        return self.q[_SAVE_STEP]

    @property
    def save_why(self) -> int:
        """`Why` of `save_step`."""
        return self.q[_SAVE_WHY]

    def hold_for_saver(self, step: int, why: int) -> None:
        """Say that the committed snapshot of `step` stays untouched until `saved` has reached it."""
        self.q[_SAVE_WHY] = why
        self.q[_SAVE_STEP] = step

    @property
    def want_save(self) -> int:
        """The step at which the script asked for a checkpoint (`job.save()`), or NONE."""
        return self.q[_WANT_SAVE]

    @want_save.setter
    def want_save(self, step: int) -> None:
        self.q[_WANT_SAVE] = step

    @property
    def shard_step(self) -> int:
        """(No supervisor) newest step whose shard this rank has written to storage, or NONE."""
        return self.q[_SHARD]

    @shard_step.setter
    def shard_step(self, step: int) -> None:
        self.q[_SHARD] = step

    @property
    def stop_wanted(self) -> int:
        """Signal number this rank was told to stop with; 0 when it was not."""
        return self.q[_STOP_WANTED]

    @stop_wanted.setter
    def stop_wanted(self, signum: int) -> None:
        self.q[_STOP_WANTED] = signum

    def set_resumed(self, kind: Resume, step: int) -> None:
        """Say what the rank has restored."""
        self.q[_RESUMED_FROM] = kind
        self.q[_RESUMED_STEP] = step

    @property
    def resumed(self) -> tuple[Resume, int]:
        """What the rank has restored: (from where, step); (UNDECIDED, NONE) before it did."""
        return Resume(self.q[_RESUMED_FROM]), self.q[_RESUMED_STEP]

    # --- the supervisor's half -------------------------------------------------------------------------

    def clear_requests(self) -> None:
        """Nothing asked, nothing decided: the state in which an attempt begins."""
        q = self.q
        q[_RESUME_KIND] = Resume.UNDECIDED
        q[_STOP_AT] = q[_RESUME_STEP] = q[_PERSIST_AT] = q[_SAVED] = NONE
        q[_DEADLINE] = q[_LEAVE] = 0

    @property
    def stop_at(self) -> int:
        """The step to stop at, or NONE."""
        return self.q[_STOP_AT]

    @stop_at.setter
    def stop_at(self, step: int) -> None:
        self.q[_STOP_AT] = step

    @property
    def deadline_ns(self) -> int:
        """Monotonic time by which a stop must be over, nanoseconds; 0 when there is none."""
        return self.q[_DEADLINE]

    @deadline_ns.setter
    def deadline_ns(self, when: int) -> None:
        self.q[_DEADLINE] = when

    @property
    def leave(self) -> bool:
        """Told to leave at once: the attempt is over, there is nothing to wait for."""
        return self.q[_LEAVE] != 0

    @leave.setter
    def leave(self, leave: bool) -> None:
        self.q[_LEAVE] = int(leave)

    def vacate(self) -> None:
        """Nobody speaks through the rank's half until the next `begin` (while no rank lives)."""
        self.q[_ATTEMPT] = NONE

    def decide_resume(self, kind: Resume, step: int) -> None:
        """Answer where the attempt starts: the step first, the kind last (it is what ranks wait for)."""
        self.q[_RESUME_STEP] = step
        self.q[_RESUME_KIND] = kind

    @property
    def resume(self) -> tuple[Resume, int]:
        """Where to take the state from; UNDECIDED until the answer is there."""
        return Resume(self.q[_RESUME_KIND]), self.q[_RESUME_STEP]

    @property
    def persist_at(self) -> int:
        """The step whose snapshot is to be held for the saver, or NONE."""
        return self.q[_PERSIST_AT]

    @persist_at.setter
    def persist_at(self, step: int) -> None:
        self.q[_PERSIST_AT] = step

    @property
    def saved(self) -> int:
        """The saver is done with every held snapshot up to this step; NONE before the first."""
        return self.q[_SAVED]

    @saved.setter
    def saved(self, step: int) -> None:
        self.q[_SAVED] = step

    @property
    def reading(self) -> int:
        """The step the saver reads at this moment, or NONE; its slot stays, also across attempts."""
        return self.q[_READING]

    @reading.setter
    def reading(self, step: int) -> None:
        self.q[_READING] = step

    @property
    def granted(self) -> int:
        """(No supervisor) the step for whose shards rank 0 has made room on storage, or NONE."""
        return self.q[_GRANTED]

    @granted.setter
    def granted(self, step: int) -> None:
        self.q[_GRANTED] = step


def open_pages(directory: Path, ranks: int) -> list[Page]:
    """Map the pages of all ranks; closes what it opened when one fails."""
    with contextlib.ExitStack() as stack:
        pages = []
        for rank in range(ranks):
            page = Page(page_path(directory, rank))
            stack.callback(page.close)
            pages.append(page)
        stack.pop_all()
    return pages
