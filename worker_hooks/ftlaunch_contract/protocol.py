"""The contract between supervisor and ranks: names, numbers, exit codes. Standard library only.

Version 3. What a rank and its supervisor tell each other goes through environment variables, one memory
page per rank (`pages/page.py`) and files (`checkpoint/layout.py`): no pickle anywhere, no socket on the hot path.
"""

from __future__ import annotations

import enum
import hashlib
import math
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

VERSION = 3

# --- environment given to ranks, besides torchrun's own -------------------------------------------------
ENV_MEMORY_DIR = "FTLAUNCH_MEMORY_DIR"  # pages and snapshots; set only under a supervisor
ENV_RUN_DIR = "FTLAUNCH_RUN_DIR"  # where logs and journal lie; without a supervisor runs/<job-id>
ENV_CHECKPOINT_DIR = "FTLAUNCH_CHECKPOINT_DIR"  # without a supervisor <run-dir>/checkpoints
ENV_JOB_ID = "FTLAUNCH_JOB_ID"  # without a supervisor from the command and its directory
ENV_ATTEMPT = "FTLAUNCH_ATTEMPT"  # the first is 0
ENV_RANK = "FTLAUNCH_RANK"  # rank/ranks of the job: a launcher below the rank gives its processes other numbers
ENV_SUPERVISOR = "FTLAUNCH_SUPERVISOR"  # pid:start time in clock ticks, which tells a reused pid
ENV_NODE_RANKS = "FTLAUNCH_NODE_RANKS"  # first:count of the ranks on this node; not set: all of them
ENV_CONTROL = "FTLAUNCH_CONTROL"  # unix socket on which a rank reports a SIGTERM that it got
ENV_MEMORY_INTERVAL = "FTLAUNCH_MEMORY_INTERVAL"  # steps, or auto; 0 is off
ENV_STORAGE_INTERVAL = "FTLAUNCH_STORAGE_INTERVAL"  # steps or a duration in seconds with an s: 100, 600s, off
ENV_KEEP = "FTLAUNCH_KEEP"  # checkpoints kept by retention
ENV_GIVEN = "FTLAUNCH_GIVEN"  # name=value: settings that no script may ask otherwise for; only under a supervisor
ENV_KEEP_EVERY = "FTLAUNCH_KEEP_EVERY"  # steps; those of a multiple of it are kept for ever; 0 is off
ENV_STORAGE_BANDWIDTH = "FTLAUNCH_STORAGE_BANDWIDTH"  # bytes a second; 0 is off
ENV_GRACE = "FTLAUNCH_GRACE"  # seconds
ENV_LOAD_CHECKPOINT = "FTLAUNCH_LOAD_CHECKPOINT"  # path to begin with; without a supervisor also a step
ENV_RESUME_TRAINING = "FTLAUNCH_RESUME_TRAINING"  # 0: of that only the weights (only without a supervisor)
ENV_FRESH = "FTLAUNCH_FRESH"  # 1: what --fresh is (only without a supervisor)
ENV_SPIKE = "FTLAUNCH_SPIKE"  # what counts as a spike, see loss_record.parse_rule; empty: spikes are not looked for
ENV_COMPARE_REPLICAS = "FTLAUNCH_COMPARE_REPLICAS"  # steps between digests of replicas; 0: never
ENV_VERIFY_RESUME = "FTLAUNCH_VERIFY_RESUME"  # auto, on or off: whether steps are made to prove a resume
ENV_SEED = "FTLAUNCH_SEED"  # a whole number: what a rank draws without a seed of its own follows from it and the rank
ENV_AUTO_ATTACH = "FTLAUNCH_AUTO_ATTACH"  # 1: adapters attach to a framework that the script imports

# --- exit codes -------------------------------------------------------------------------------------------
EXIT_DONE = 0
EXIT_GIVEN_UP = 1
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_SAVED = 75  # EX_TEMPFAIL: stopped on request with a checkpoint committed, run me again
EXIT_STOPPED = 143  # 128 + SIGTERM: stopped on request, nothing to save

# Asks a rank for the stacks of all its threads. Not SIGUSR1 or SIGUSR2: NCCL and launchers use those.
STACKS_SIGNAL = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

DEFAULT_KEEP = 5
DEFAULT_GRACE = 30.0
DEFAULT_STORAGE_INTERVAL = "600s"
DEFAULT_MEMORY_INTERVAL = "auto"
# of the time of training: what copies may take where the interval between snapshots is fitted to it; a copy also
# empties the processor's caches, which costs the next step as much again: less than 1 % together
MEMORY_SHARE = 0.005

# Two slots alternate while the saver reads the third. Where other nodes keep copies, a fourth one lets the steps stay
# that are there, or on their way, until all nodes have a newer one there. STAGED is a slot on storage: it is used where
# there is no room in memory (memory_budget.py).
MEMORY_SLOTS = 3
PEER_SLOTS = MEMORY_SLOTS + 1
STAGED = PEER_SLOTS
SLOTS = PEER_SLOTS + 1


class Phase(enum.IntEnum):
    """What a rank says it is doing."""

    STARTUP = 0
    TRAIN = 1
    EVAL = 2
    CHECKPOINT = 3
    TEARDOWN = 4

    @classmethod
    def named(cls, name: str) -> Phase:
        """The phase of a name as scripts give it. Raises ValueError."""
        try:
            return cls[name.upper()]
        except KeyError:
            allowed = ", ".join(phase.name.lower() for phase in cls)
            raise ValueError(f"cannot enter phase {name!r}: phases are {allowed}") from None


class Why(enum.IntEnum):
    """Why a checkpoint is made; also the `why` of the journal's `checkpoint_committed`."""

    INTERVAL = 0
    STOP = 1
    INCIDENT = 2
    REQUEST = 3  # job.save()
    END = 4  # the loop ran to its end


class Resume(enum.IntEnum):
    """Where the ranks of an attempt take their state from; at UNDECIDED the ranks wait for the answer."""

    UNDECIDED = 0
    FRESH = 1
    MEMORY = 2
    PEER = 3
    STORAGE = 4
    REFUSED = 5  # there are checkpoints, but none is usable: a fresh start must be asked for
    LOADED = 6  # the checkpoint that the job is to begin with (ENV_LOAD_CHECKPOINT)
    WEIGHTS = 7  # the same, but the weights only: the job begins at step 0

    @property
    def in_memory(self) -> bool:
        """Whether every rank finds its state in the memory of its node; PEER: on some nodes other nodes have put it."""
        return self in (Resume.MEMORY, Resume.PEER)


RESTORED_FROM = {
    Resume.MEMORY: "memory",
    Resume.PEER: "peer",
    Resume.STORAGE: "storage",
    Resume.LOADED: "storage",
}


class Flag(enum.IntFlag):
    """Bits a rank sets in its page."""

    ATTACHED = 1  # attach() is done: the rank reads the page at every step boundary
    STACKS = 2  # STACKS_SIGNAL dumps stacks instead of killing
    LOOP_LEFT = 4  # the training loop has ended: exit code 0 means success from here on
    STOPPED = 8  # left the loop because it was told to stop
    MAPPED = 16  # (no supervisor) has mapped the pages of all its peers
    OBSERVED = 32  # beats come from torch's optimizers (optimizer_steps.py), until it attaches
    FINAL = 64  # ends over an error that would come again in every attempt (error_file.py)
    STEPS_UNKNOWN = 256  # trains, and none of torch's optimizers makes its steps (hand_made_steps.py)
    ENDED_WELL = 128  # script, threads and atexit functions are over, with exit code 0 (interpreter_end.py)


def announce_step(newest: int, step_seconds: float, delay_seconds: float = 0.0) -> int:
    """The step to announce when the fastest rank has completed `newest` steps of `step_seconds` each.

    Two steps ahead at least: a rank may be between completing a step and looking at its page. Steps that
    are short against the time the announcement takes get proportionally more room (50 ms worth, 1000 at
    most). A rank that is past the step all the same stops at once: the newest step that all ranks
    have in memory counts. delay_seconds: how much longer than usual the news of `newest` may have been under way.
    """
    spare = math.ceil((0.05 + delay_seconds) / step_seconds) if step_seconds > 0 else 0
    return newest + 2 + min(spare, 1000)


class MemoryInterval(NamedTuple):
    """How often snapshots are taken."""

    steps: int  # between snapshots; 0 is never
    auto: bool  # `steps` is where it begins: it is fitted to what snapshots cost


def memory_interval(text: str) -> MemoryInterval:
    """Read ENV_MEMORY_INTERVAL. Raises ValueError."""
    return MemoryInterval(1, True) if text == "auto" else MemoryInterval(int(text), False)


def default_job_id(cwd: str, kind: str, target: str, args: Sequence[str], environ: Mapping[str, str]) -> str:
    """A stable name for the command: the script's stem and a short hash of working directory and command.

    The tasks of a Slurm array have one command and are different jobs: the name ends with the number of the task.
    """
    task = environ.get("SLURM_ARRAY_TASK_ID", "") if "SLURM_ARRAY_JOB_ID" in environ else ""
    number = f"-{task}" if re.fullmatch("[0-9]{1,9}", task, re.ASCII) else ""
    stem = Path(target).stem if kind != "module" else target
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip(".-")[: 48 - len(number)] or "job"
    text = "\0".join([cwd, kind, target, *args])
    return f"{stem}-{hashlib.sha256(os.fsencode(text)).hexdigest()[:8]}{number}"


def memory_root(uid: int) -> Path:
    """Where all jobs of a user keep pages and snapshots (tmpfs, mode 0700)."""
    return Path(f"/dev/shm/ftlaunch-{uid}")  # noqa: S108 - private: made 0700 and checked for its owner


def stacks_path(memory_dir: Path, rank: int) -> Path:
    """Where STACKS_SIGNAL leaves the stacks of a rank and of the children it has forked."""
    return memory_dir / f"stacks_{rank}"


def sampled_names_path(memory_dir: Path, rank: int) -> Path:
    """Where a rank lists what a proof may name: its sampled parameters, then the attached objects, as a JSON list."""
    return memory_dir / f"sampled_{rank}.json"


def witness_path(memory_dir: Path, rank: int) -> Path:
    """The unix socket of a rank's worker server (worker_server.py)."""
    return memory_dir / f"witness_{rank}"


def process_start_time(pid: int) -> int:
    """Start time of a process in clock ticks since boot, from /proc; 0 when no such process lives (a zombie does not).

    With the pid it names a process for good: a reused pid has another start time.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    state, *fields = stat.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(fields[18])


def parent_of(pid: int) -> int:
    """The pid of a process's parent, from /proc; 0 when no such process is there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def own_start_time() -> int:
    """`process_start_time` of the calling process."""
    return process_start_time(os.getpid())
