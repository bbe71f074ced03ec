"""The contract between supervisor and ranks: environment variables, exit codes, enumerations and path names.

A rank and its supervisor talk through environment variables, one memory page per rank (`pages/page.py`) and files
(`checkpoint/layout.py`). There is no pickle anywhere and no socket on the hot path. Both sides import this module;
everything in it is a constant or a pure function, except those that read /proc. Standard library only.
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

from ftlaunch_contract.schedulers.table import array_task

VERSION = 3

# --- environment given to ranks, besides torchrun's own -------------------------------------------------
ENV_MEMORY_DIR = "FTLAUNCH_MEMORY_DIR"  # pages and snapshots; set only under a supervisor
ENV_RUN_DIR = "FTLAUNCH_RUN_DIR"  # directory of logs and journal; without a supervisor runs/<job-id>
ENV_CHECKPOINT_DIR = "FTLAUNCH_CHECKPOINT_DIR"  # without a supervisor <run-dir>/checkpoints
ENV_JOB_ID = "FTLAUNCH_JOB_ID"  # without a supervisor made from the command and its directory
ENV_ATTEMPT = "FTLAUNCH_ATTEMPT"  # number of the attempt, the first is 0
ENV_RANK = "FTLAUNCH_RANK"  # RANK/RANKS of the job: a launcher below the rank renumbers the processes it starts
ENV_SUPERVISOR = "FTLAUNCH_SUPERVISOR"  # PID:START in clock ticks; the start time gives a reused pid away
ENV_NODE_RANKS = "FTLAUNCH_NODE_RANKS"  # FIRST:COUNT of the ranks on this node; not set: all of the job's
ENV_CONTROL = "FTLAUNCH_CONTROL"  # unix socket on which a rank reports that it received SIGTERM
ENV_MEMORY_INTERVAL = "FTLAUNCH_MEMORY_INTERVAL"  # steps, or auto; 0 is off
ENV_STORAGE_INTERVAL = "FTLAUNCH_STORAGE_INTERVAL"  # steps or a duration in seconds with an s: 100, 600s, off
ENV_KEEP = "FTLAUNCH_KEEP"  # number of checkpoints that retention keeps
ENV_GIVEN = "FTLAUNCH_GIVEN"  # name=value ...: settings that a script may not override; only under a supervisor
ENV_KEEP_EVERY = "FTLAUNCH_KEEP_EVERY"  # steps: a checkpoint at a multiple of this number is never deleted; 0 is off
ENV_STORAGE_BANDWIDTH = "FTLAUNCH_STORAGE_BANDWIDTH"  # bytes a second; 0 is off
ENV_GRACE = "FTLAUNCH_GRACE"  # seconds between a stop request and SIGKILL
ENV_LOAD_CHECKPOINT = "FTLAUNCH_LOAD_CHECKPOINT"  # path to begin with; without a supervisor also a step
ENV_RESUME_TRAINING = "FTLAUNCH_RESUME_TRAINING"  # 0: load only the weights (only without a supervisor)
ENV_FRESH = "FTLAUNCH_FRESH"  # 1: start as --fresh does (only without a supervisor)
ENV_TAKE_OVER_STORE = "FTLAUNCH_TAKE_OVER_STORE"  # 1: start as --take-over-store does (only without a supervisor)
ENV_SPIKE = "FTLAUNCH_SPIKE"  # what counts as a loss spike, read by loss_record.parse_rule; empty: nothing does
ENV_COMPARE_REPLICAS = "FTLAUNCH_COMPARE_REPLICAS"  # steps between digests of replicas; 0: never
ENV_VERIFY_RESUME = "FTLAUNCH_VERIFY_RESUME"  # auto, on or off: whether steps are repeated to prove a resume
ENV_SEED = "FTLAUNCH_SEED"  # whole number: seeds the random draws of a rank that sets no seed of its own
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
DEFAULT_GRACE_SECONDS = 30.0
DEFAULT_STORAGE_INTERVAL = "600s"
DEFAULT_MEMORY_INTERVAL = "auto"
# The share of the training time that snapshot copies may take where the interval is chosen automatically. A copy also
# empties the processor's caches, which costs the next step about as much again: less than 1 % together.
MEMORY_SHARE = 0.005

# Two slots alternate while the saver reads the third. Where other nodes keep copies of snapshots, a fourth slot keeps
# the step that was sent, or is being sent, until all nodes have sent a newer one. STAGED is a slot on storage, for jobs
# whose snapshots do not fit into memory (snapshots/memory_budget.py).
MEMORY_SLOTS = 3
PEER_SLOTS = MEMORY_SLOTS + 1
STAGED = PEER_SLOTS
SLOTS = PEER_SLOTS + 1


class Phase(enum.IntEnum):
    """What a rank says it is doing at the moment."""

    STARTUP = 0
    TRAIN = 1
    EVAL = 2
    CHECKPOINT = 3
    TEARDOWN = 4

    @classmethod
    def named(cls, name: str) -> Phase:
        """Return the phase that a script calls `name`.

        Raises:
            ValueError: there is no such phase; the message lists the phases.
        """
        try:
            return cls[name.upper()]
        except KeyError:
            allowed = ", ".join(phase.name.lower() for phase in cls)
            raise ValueError(f"cannot enter phase {name!r}: phases are {allowed}") from None


class Why(enum.IntEnum):
    """Why a checkpoint is made; `checkpoint_committed` in the journal carries the lower-case name."""

    INTERVAL = 0
    STOP = 1
    INCIDENT = 2
    REQUEST = 3  # job.save()
    END = 4  # the loop ran to its end


class Resume(enum.IntEnum):
    """Where the ranks of an attempt take their state from. Ranks wait while the answer is UNDECIDED."""

    UNDECIDED = 0
    FRESH = 1
    MEMORY = 2
    PEER = 3
    STORAGE = 4
    REFUSED = 5  # there are checkpoints, but none is usable: a fresh start must be asked for
    LOADED = 6  # the checkpoint that the job is to begin with (ENV_LOAD_CHECKPOINT)
    WEIGHTS = 7  # only the weights of ENV_LOAD_CHECKPOINT: the job begins at step 0

    @property
    def in_memory(self) -> bool:
        """Whether every rank finds its state in its node's memory; for PEER, other nodes may have put it there."""
        return self in (Resume.MEMORY, Resume.PEER)


RESTORED_FROM = {
    Resume.MEMORY: "memory",
    Resume.PEER: "peer",
    Resume.STORAGE: "storage",
    Resume.LOADED: "storage",
}


class Flag(enum.IntFlag):
    """Bits that a rank sets in its page."""

    ATTACHED = 1  # attach() is done: the rank reads the page at every step boundary
    STACKS = 2  # STACKS_SIGNAL dumps stacks instead of killing
    LOOP_LEFT = 4  # the training loop has ended: exit code 0 means success from here on
    STOPPED = 8  # the rank left the loop because it was told to stop
    MAPPED = 16  # (no supervisor) the rank has mapped the pages of all its peers
    OBSERVED = 32  # beats come from torch's optimizers (optimizer_steps.py), until the rank attaches
    FINAL = 64  # the rank ends over an error that every attempt would repeat (error_file.py)
    STEPS_UNKNOWN = 256  # the rank trains, but no torch optimizer makes its steps (hand_made_steps.py)
    ENDED_WELL = 128  # script, threads and atexit functions are over, with exit code 0 (interpreter_end.py)


def announce_step(newest: int, step_seconds: float, delay_seconds: float = 0.0) -> int:
    """Return the step to announce to all ranks, late enough that no rank has passed it when the announcement arrives.

    The result is at least two steps ahead of `newest`, because a rank may be between completing a step and reading its
    page. Steps that are short compared with the time of the announcement get proportionally more room: 50 ms worth, at
    most 1000 steps. A rank that has passed the step all the same stops at once, and the newest step that all ranks have
    in memory counts.

    Args:
        newest: completed steps of the fastest rank.
        step_seconds: duration of one step; 0 where no duration is known.
        delay_seconds: how much longer than usual the news of `newest` may have taken to arrive.
    """
    spare = math.ceil((0.05 + delay_seconds) / step_seconds) if step_seconds > 0 else 0
    return newest + 2 + min(spare, 1000)


class MemoryInterval(NamedTuple):
    """How often snapshots are taken."""

    steps: int  # between snapshots; 0 is never
    auto: bool  # `steps` is only the first interval: ranks fit the interval to the cost of snapshots


def memory_interval(text: str) -> MemoryInterval:
    """Read the value of ENV_MEMORY_INTERVAL.

    Raises:
        ValueError: the text is neither `auto` nor a whole number.
    """
    return MemoryInterval(1, True) if text == "auto" else MemoryInterval(int(text), False)


def scheme_of(text: str) -> str | None:
    """Return the scheme of an address such as `s3://bucket/prefix`, in lower case; None if the text is a path."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    return None if found is None else found[1].lower()


def default_job_id(cwd: str, kind: str, target: str, args: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a stable job id for a command: the script's stem and a short hash of working directory and command.

    The tasks of a scheduler's array share one command but are different jobs: their ids end with the task's number.

    Args:
        cwd: the working directory.
        kind: script, module or program.
        target: the path of the script or program, or the name of the module.
        args: the arguments of the script, module or program.
        environ: the environment, in which a scheduler says which task of an array this is.
    """
    task = array_task(environ)
    task_suffix = f"-{task}" if task else ""
    stem = Path(target).stem if kind != "module" else target
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip(".-")[: 48 - len(task_suffix)] or "job"
    hashed = "\0".join([cwd, kind, target, *args])
    return f"{stem}-{hashlib.sha256(os.fsencode(hashed)).hexdigest()[:8]}{task_suffix}"


def memory_root(uid: int) -> Path:
    """Return the directory in which all jobs of a user keep pages and snapshots (tmpfs, mode 0700)."""
    return Path(f"/dev/shm/ftlaunch-{uid}")  # noqa: S108 - private: made 0700 and checked for its owner


def stacks_path(memory_dir: Path, rank: int) -> Path:
    """Return the file in which STACKS_SIGNAL leaves the stacks of a rank and of the children that it has forked."""
    return memory_dir / f"stacks_{rank}"


def sampled_names_path(memory_dir: Path, rank: int) -> Path:
    """Return the file in which a rank lists what a proof's `parameter` is the index of, as a JSON list.

    The list has the names of the sampled parameters, then those of the attached objects.
    """
    return memory_dir / f"sampled_{rank}.json"


def witness_path(memory_dir: Path, rank: int) -> Path:
    """Return the path of the unix socket of a rank's worker server (worker_server.py)."""
    return memory_dir / f"witness_{rank}"


def process_start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, from /proc; 0 for a zombie or a missing process.

    Pid and start time together identify a process for good: a reused pid has another start time.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    state, *fields = stat.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(fields[18])


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent, from /proc; 0 when the process does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def own_start_time() -> int:
    """Return `process_start_time` of the calling process."""
    return process_start_time(os.getpid())
