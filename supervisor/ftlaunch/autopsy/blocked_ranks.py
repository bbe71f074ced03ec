"""Judges whether the remaining ranks are all blocked on a rank that is dead or hangs, so that no grace helps. Pure.

A signal handler in Python runs when the main thread returns to the interpreter. A main thread that is in a collective
with a dead rank does not return before the collective's timeout, minutes later.

A rank is blocked if its main thread is in a call of torch.distributed that waits for others in C++, and no thread or
child of the rank is at work. A rank without a stack dump never counts as blocked. The ranks are lost only if all
remaining ranks are blocked, in two examinations, in the same place. One rank that works is enough to wait: the others
may wait for a result of that rank, or the rank may need the others to save, and a restart waits for the last rank
anyway.

After a hang, the hanging rank may be alive. The hanging rank counts as blocked, in any call, if SIGTERM has changed
nothing: its main thread uses no processor, is where it was in the autopsy of the hang, and is in no signal handler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from ftlaunch.autopsy import stacks
from ftlaunch.autopsy.flight_recorder import Collective
from ftlaunch.autopsy.rank_dump import BUSY, Child, RankDump
from ftlaunch.autopsy.stacks import Frame, Stack
from ftlaunch.autopsy.verdict import doing, in_collective

_C10D = re.compile(r"torch/distributed/distributed_c10d\.py$")
_IN_C10D = re.compile(
    r"^_?(?:all_(?:reduce|gather|to_all)|reduce|broadcast|gather|scatter|send|recv|(?:monitored_|store_based_)?barrier"
    r"|batch_isend_irecv|coalescing_manager|wait$|init_process_group|new_(?:group|process_group_helper)"
    r"|(?:split|shrink)_group)"
)
# Modules of torch.distributed in which only waits for peers, or for the store, take long.
_OTHERS = re.compile(r"torch/distributed/(?:_functional_collectives|rendezvous|elastic/utils/store)\.py$")
_CALLS_OPERATOR = re.compile(r"torch/_ops\.py$")  # between _functional_collectives.py and C++
_BACKWARD_PATH = "torch/autograd/graph.py"  # DistributedDataParallel waits in the backward pass, in C++
_BACKWARD_FUNCTION = "_engine_run_backward"
_DISTRIBUTED = re.compile(r"/torch/distributed/")
# A signal handler that interrupted the job's own code looks like any call; only the name of the function tells.
_HANDLER = re.compile(
    r"sig_?(?:term|int|usr|handle)|handler|handle_sig|on_(?:sig|term)|preempt|graceful", re.IGNORECASE
)
_SAVING_PATH = re.compile(r"torch/(?:serialization\.py$|distributed/checkpoint/)|/safetensors/|checkpoint[^/]*\.py$")
_SAVING = re.compile(r"save|checkpoint|upload", re.IGNORECASE)
_IDLE = re.compile(r"/(?:selectors|socketserver)\.py$")
_IDLE_WAITS = ("lock", "loader")  # values of `Stack.wait` of a thread that has nothing to do


@dataclass(frozen=True)
class BlockedAt:
    """Where a rank is blocked."""

    main: Stack  # of the main thread
    pending: Collective | None  # the oldest collective that is not over; None if unknown
    description: str  # the place in words: `in all_reduce #5 at train.py:95`


def waits(dumps: Mapping[int, RankDump], hung: RankDump | None = None) -> dict[int, BlockedAt]:
    """Return where each remaining rank is blocked, by rank; empty unless all of them are blocked.

    Args:
        dumps: dumps of the remaining ranks, by rank.
        hung: dump of the hanging rank, from the autopsy of the hang; None if no rank hangs.
    """
    found = {}
    for rank, dump in dumps.items():
        blocked = _blocked_on_peers(dump) or _unmoved(dump, hung)
        if blocked is None:
            return {}
        found[rank] = blocked
    return found


def lost(before: Mapping[int, BlockedAt], now: Mapping[int, BlockedAt]) -> bool:
    """Return whether all ranks of the second examination are blocked where they were blocked in the first.

    Args:
        before: result of `waits` for the first examination.
        now: result of `waits` for the second examination.
    """
    return bool(now) and all(before.get(rank) == blocked for rank, blocked in now.items())


def sentence(dead: int, found: Mapping[int, BlockedAt]) -> str:
    """Return why the remaining ranks are killed, in words.

    Args:
        dead: the rank that has ended, or that hangs.
        found: where the remaining ranks are blocked.
    """
    places = ", ".join(f"rank {rank} {blocked.description}" for rank, blocked in sorted(found.items()))
    if dead in found:
        why = f"SIGTERM has moved nothing in rank {dead}, which hangs, and others wait"
        return f"{why}: {places}; killing them without grace"
    return f"without rank {dead} all that are left can only be blocked: {places}; killing them without grace"


def _blocked_on_peers(dump: RankDump) -> BlockedAt | None:
    """Return where a rank is blocked in a call that waits for other ranks; None if the rank may not be blocked."""
    main = dump.main
    if main is None or dump.stopped or dump.lock_held or dump.state == "D":
        return None
    waits_for_peers = _waits_for_peers(main) or _in_backward(main, dump)
    if not waits_for_peers or _in_handler(main) or not _is_rest_idle(dump):
        return None
    return BlockedAt(main=main, pending=dump.pending, description=in_collective(dump))


def _unmoved(dump: RankDump, hung: RankDump | None) -> BlockedAt | None:
    """Return where the hanging rank is, if SIGTERM has changed nothing there; else None."""
    main = dump.main
    if main is None or hung is None or hung.rank != dump.rank or hung.main != main:
        return None
    is_at_work = dump.stopped or dump.lock_held or dump.state in ("R", "D") or dump.busy >= BUSY
    if is_at_work or _in_handler(main) or not _is_rest_idle(dump):
        return None
    return BlockedAt(main=main, pending=dump.pending, description=doing(dump))


def _is_rest_idle(dump: RankDump) -> bool:
    """Return whether no thread but the main thread, and no child, has anything to finish."""
    others = stacks.threads(dump.stack)[:-1]
    return all(_is_idle(thread) for thread in others) and not any(_is_at_work(child) for child in dump.children)


def _waits_for_peers(stack: Stack) -> bool:
    """Return whether the innermost frame of a thread is in a call that waits for other ranks."""
    inner = next((frame for frame in stack.frames if not _CALLS_OPERATOR.search(frame.path)), None)
    if inner is None:
        return False
    return bool(_C10D.search(inner.path) and _IN_C10D.search(inner.function)) or bool(_OTHERS.search(inner.path))


def _in_backward(main: Stack, dump: RankDump) -> bool:
    """Return whether the main thread is idle in the backward pass while an entered collective is not over."""
    inner = main.frames[0]
    is_inside = inner.path.endswith(_BACKWARD_PATH) and inner.function == _BACKWARD_FUNCTION
    return is_inside and dump.pending is not None and dump.busy < BUSY


def _in_handler(main: Stack) -> bool:
    """Return whether a signal handler runs.

    A handler has the name of one, or is the job's own code called from torch.distributed, which it interrupted.
    """
    if any(_HANDLER.search(frame.function) for frame in main.frames if not _DISTRIBUTED.search(frame.path)):
        return True
    return any(_C10D.search(outer.path) and not inner.foreign for inner, outer in pairwise(main.frames))


def _is_idle(thread: Stack) -> bool:
    """Return whether a thread other than the main thread has nothing to finish."""
    if any(_is_saving(frame) for frame in thread.frames):
        return False
    is_idle = not thread.frames or bool(_IDLE.search(thread.frames[0].path))
    return is_idle or thread.wait in _IDLE_WAITS or _waits_for_peers(thread)


def _is_at_work(child: Child) -> bool:
    """Return whether a child of the rank may have something to finish, such as a checkpoint."""
    is_saving = any(_is_saving(frame) for thread in stacks.threads(child.stack) for frame in thread.frames)
    return is_saving or child.state in ("R", "D")


def _is_saving(frame: Frame) -> bool:
    return bool(_SAVING_PATH.search(frame.path) or _SAVING.search(frame.function))
