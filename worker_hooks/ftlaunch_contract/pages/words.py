"""The table of the page: all of its 512 words, with their offsets, writers, lifetimes and meanings.

A word is 8 bytes. Words that belong together are one row of the table. Changing an offset changes the protocol
(protocol.VERSION). Rows that overlap, a row that leaves its writer's half, and two rows of one name raise ValueError
when this module is imported.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import pairwise

from ftlaunch_contract.protocol import SLOTS

WORDS = 512
NONE = -1  # "no step", in every word that holds a step


class Writer(enum.Enum):
    """Who writes a word while the rank lives; the value is the range of words that this writer may write."""

    RANK = range(WORDS // 2)
    SUPERVISOR = range(WORDS // 2, WORDS)  # in a job without a supervisor: rank 0


class Lifetime(enum.Enum):
    """The event that empties a word."""

    PROCESS = "a new process of the rank"
    ATTEMPT = "a new attempt of the job"
    PAGE = "nothing: the word stays"


class Words(int):
    """A row of the table: one word, or several words in a row. The number itself is the offset of the first word."""

    name: str
    meaning: str
    count: int
    writer: Writer
    lifetime: Lifetime
    empty: int  # the value of each word after it was emptied

    def __new__(
        cls, name: str, offset: int, meaning: str, count: int, writer: Writer, lifetime: Lifetime, empty: int
    ) -> Words:
        """Make a row whose value is `offset`; the other arguments become its fields."""
        row = super().__new__(cls, offset)
        row.name = name
        row.meaning = meaning
        row.count = count
        row.writer = writer
        row.lifetime = lifetime
        row.empty = empty
        return row

    @property
    def end(self) -> int:
        """Return the offset after the last word."""
        return self + self.count


_rows: list[Words] = []


def _rank(
    name: str, offset: int, meaning: str, *, count: int = 1, lifetime: Lifetime = Lifetime.PROCESS, empty: int = 0
) -> Words:
    row = Words(
        name=name, offset=offset, meaning=meaning, count=count, writer=Writer.RANK, lifetime=lifetime, empty=empty
    )
    _rows.append(row)
    return row


def _supervisor(
    name: str, offset: int, meaning: str, *, lifetime: Lifetime = Lifetime.ATTEMPT, empty: int = 0
) -> Words:
    row = Words(
        name=name, offset=offset, meaning=meaning, count=1, writer=Writer.SUPERVISOR, lifetime=lifetime, empty=empty
    )
    _rows.append(row)
    return row


# --- the rank's half: page.py ------------------------------------------------------------------------------
MAGIC = _rank("magic", 0, "Tells a page from any other file.", lifetime=Lifetime.PAGE)
VERSION = _rank("version", 1, "Version of the protocol.", lifetime=Lifetime.PAGE)
PID = _rank("pid", 2, "Process id of the rank.", lifetime=Lifetime.PAGE)
START_TIME = _rank(
    "start_time", 3, "Start time of the rank's process in clock ticks since boot.", lifetime=Lifetime.PAGE
)
ATTEMPT = _rank(
    "attempt", 4, "The attempt the rank's half speaks of; NONE before the first.", lifetime=Lifetime.PAGE, empty=NONE
)
PHASE = _rank("phase", 5, "`Phase`: what the rank says it is doing.")
STEP = _rank("step", 6, "Completed steps; NONE before attach() knows.", empty=NONE)
BEAT = _rank("beat_ns", 7, "Monotonic time of the last beat, nanoseconds.", lifetime=Lifetime.PAGE)
CONSUMED = _rank("consumed", 8, "Samples consumed over all ranks, where a sampler says.")
STEP_NS = _rank("step_ns", 9, "Duration of the last step, nanoseconds; 0 before the first.")
LOSS = _rank("loss", 10, "What `job.step_done(loss=...)` said last, a double; NaN before.", lifetime=Lifetime.PAGE)
FLAGS = _rank("flags", 11, "`Flag`: what the rank says of itself.")
SAVE_STEP = _rank(
    "save_step", 12, "Newest step whose snapshot is held for the saver; NONE when there is none.", empty=NONE
)
SAVE_WHY = _rank("save_why", 13, "`Why` of `save_step`.")
RESUMED_STEP = _rank("resumed_step", 14, "The step that the rank has restored; NONE before.", empty=NONE)
RESUMED_FROM = _rank("resumed_from", 15, "`Resume`: from where the rank has restored it.")
STOP_WANTED = _rank("stop_wanted", 16, "Signal number this rank was told to stop with; 0 when it was not.")
WANT_SAVE = _rank(
    "want_save", 17, "The step at which the script asked for a checkpoint (`job.save()`), or NONE.", empty=NONE
)
SHARD_STEP = _rank(
    "shard_step", 18, "(No supervisor) newest step whose shard this rank has written to storage, or NONE.", empty=NONE
)
SEEN_STEPS = _rank(
    "seen_steps", 19, "Optimizer steps seen in a script without hooks; they begin with 0 in every attempt."
)
SAVES_ASKED = _rank(
    "saves_asked", 20, "Step + 1 at which the script has asked for the words up to `save_keep`; 0: it has not."
)
SAVE_EVERY = _rank("save_every", 21, "Steps between checkpoints, as the script asks; 0: it does not.")
SAVE_EVERY_NS = _rank("save_every_ns", 22, "Nanoseconds between checkpoints, as the script asks; 0: it does not.")
SAVE_KEEP = _rank("save_keep", 23, "Checkpoints to keep, as the script asks; 0: it does not.")
SLOT_STEPS = _rank(
    "slot_steps",
    32,
    "For each snapshot slot the step it holds whole, or NONE.",
    count=SLOTS,
    lifetime=Lifetime.PAGE,
    empty=NONE,
)
MEMORY = _rank("memory", 52, "(First rank of a node) `Memory`: what the ranks have agreed on.", count=4)
OWN_STEPS = _rank("own_steps", 232, "Steps whose own part was measured.")
OWN_NS = _rank("own_ns", 233, "Sum of these own parts, nanoseconds.")

# --- the rank's half: memory_budget.py. Steps are written as step + 1, so that an empty word is no step ----------
NEED = _rank("need", 40, "Bytes of one snapshot of this rank.")
HELD = _rank("held", 41, "Bytes that this rank's slots take.")
SIZED = _rank("sized", 42, "Step + 1 at whose boundary `need` and `held` were written.")
AGREED = _rank("agreed", 46, "(First rank of a node) step + 1 at whose boundary the ranks have agreed on the memory.")
AGREED_SLOTS = _rank("agreed_slots", 47, "(First rank of a node) slots in memory from then on.")
AGREED_BASE = _rank("agreed_base", 48, "(First rank of a node) step + 1 of the newest snapshot that all ranks have.")

# --- the rank's half: peer_progress.py, steps as step + 1 ----------------------------------------------------------
ASKED = _rank("asked", 43, "Why this rank asks for a new agreement on the memory, in bits; 0 when it does not.")
NEWEST_SNAPSHOT = _rank("newest_snapshot", 44, "Step + 1 of this rank's newest snapshot.")
MISSED = _rank("missed", 45, "Step + 1 of the newest snapshot that was to be held for the saver, and is not there.")
PREPARING = _rank("preparing", 51, "1: this rank prepares the slot of its next snapshot beside the training.")
ENDLESS = 1 << 31
"""what an adapter gives for a number of steps that it does not know: any total from here on has no end"""
MOST_STEPS = (1 << 48) - 1
"""the largest total that `intent` can hold"""
INTENT = _rank(
    "intent", 49, "The steps that the script's loop is to make: 16 bits of the loop's number, 48 of the total."
)

# --- the rank's half: interval.py --------------------------------------------------------------------------
WANTED = _rank(
    "wanted",
    50,
    "(First rank of a node, where there are others) steps between snapshots that the node wants; 0: not said.",
)

# --- the rank's half: other rooms --------------------------------------------------------------------------
SCHEDULE = _rank(
    "schedule", 64, "(First rank of a node) what happens at each boundary, a ring: step_schedule.py.", count=64
)
REPLICAS = _rank(
    "replicas", 128, "Digests of the replicated tensors that this rank holds: replica_agreement.py.", count=66
)
LOSSES = _rank("losses", 200, "Bad losses, a record of 8 words for each kind: loss_record.py.", count=16)
DIGESTS = _rank("digests", 216, "Digests of replicas, a ring of 8 pairs: replica_record.py.", count=16)
PROOF = _rank("proof", 248, "What the steps made again after a resume have shown: proof_record.py.", count=8)
EXIT_FUTEX = _rank("exit_futex", 240, "A pthread_mutex_t: exit_futex.py.", count=8, lifetime=Lifetime.PAGE)

# --- the supervisor's half ---------------------------------------------------------------------------------
STOP_AT = _supervisor("stop_at", 256, "The step to stop at, or NONE.", empty=NONE)
DEADLINE = _supervisor(
    "deadline_ns", 257, "Monotonic time by which a stop must be over, nanoseconds; 0 when there is none."
)
LEAVE = _supervisor("leave", 258, "1: the attempt is over, leave at once, there is nothing to wait for.")
RESUME_KIND = _supervisor("resume_kind", 259, "`Resume`: where to take the state from; UNDECIDED before the answer.")
RESUME_STEP = _supervisor("resume_step", 260, "The step to resume from, or NONE.", empty=NONE)
PERSIST_AT = _supervisor("persist_at", 261, "The step whose snapshot is to be held for the saver, or NONE.", empty=NONE)
SAVED = _supervisor(
    "saved", 262, "The saver is done with every held snapshot up to this step; NONE before the first.", empty=NONE
)
READING = _supervisor(
    "reading", 263, "The step the saver reads now, or NONE; its slot stays, also across attempts.",
    lifetime=Lifetime.PAGE, empty=NONE,
)  # fmt: skip
GRANTED = _supervisor(
    "granted", 264, "(No supervisor) the step for whose shards rank 0 has made room on storage, or NONE.",
    lifetime=Lifetime.PAGE, empty=NONE,
)  # fmt: skip
EVERY = _supervisor("every", 265, "Steps between snapshots, the same on all nodes of the job; 0: not announced.")
EVERY_FROM = _supervisor("every_from", 266, "The step from which `every` holds, or NONE.", empty=NONE)
SENDING = _supervisor(
    "sending", 267, "The step the copier sends now, or NONE; its slot stays.", lifetime=Lifetime.PAGE, empty=NONE
)
PEER_EVERY = _supervisor("peer_every", 268, "Steps between copies to other nodes; 0: there are none.")

TABLE = tuple(sorted(_rows))


def check(table: Iterable[Words]) -> None:
    """Check a table of the page.

    Raises:
        ValueError: a row leaves its writer's half, overlaps another, or has the name of another.
    """
    rows = sorted(table)
    for row in rows:
        half = row.writer.value
        if row not in half or row.end > half.stop:
            raise ValueError(
                f"cannot lay out the page: {_words_of(row)} must lie in the words {half.start} to {half.stop - 1}"
                f" of the {row.writer.name.lower()}"
            )
    for row, next_row in pairwise(rows):
        if row.end > next_row:
            raise ValueError(f"cannot lay out the page: {_words_of(row)} and {_words_of(next_row)} overlap")
    names = sorted(row.name for row in rows)
    for name, next_name in pairwise(names):
        if name == next_name:
            raise ValueError(f"cannot lay out the page: two rows are called {name}")


def _words_of(row: Words) -> str:
    """Describe a row and its words in an error message."""
    return f"{row.name} (words {int(row)} to {row.end - 1})"


check(TABLE)
