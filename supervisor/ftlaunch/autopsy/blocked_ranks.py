"""Which of the ranks that a dead rank has left can only be blocked on it: no grace helps those. Pure.

A signal handler in Python runs when the main thread returns to the interpreter. One that stands in a collective with a
dead rank does not return before the collective's timeout, minutes later.

A rank is blocked when its main thread stands in a call of torch.distributed that waits for others in C++, and no thread
or child of the rank is at work. A rank without a stack dump is never counted as blocked. The ranks are lost only when
all that are left are blocked, twice, in the same place: a rank that works may yet bring what the others wait for, or
need them to save; and a restart waits for the last rank anyway.

After a hang the rank that hangs may live. It counts as blocked, wherever it stands, when SIGTERM has moved nothing in
it: its main thread, which uses no processor, is where it was in the autopsy of the hang, and in no signal handler.
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
# modules of torch.distributed that do nothing long but wait for peers, or for the store
_OTHERS = re.compile(r"torch/distributed/(?:_functional_collectives|rendezvous|elastic/utils/store)\.py$")
_CALLS_OPERATOR = re.compile(r"torch/_ops\.py$")  # between _functional_collectives.py and C++
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")  # DistributedDataParallel waits in it, in C++
_DISTRIBUTED = re.compile(r"/torch/distributed/")
# a signal handler that interrupted the job's own code looks like any call: only its name tells
_HANDLER = re.compile(
    r"sig_?(?:term|int|usr|handle)|handler|handle_sig|on_(?:sig|term)|preempt|graceful", re.IGNORECASE
)
_SAVING_PATH = re.compile(r"torch/(?:serialization\.py$|distributed/checkpoint/)|/safetensors/|checkpoint[^/]*\.py$")
_SAVING = re.compile(r"save|checkpoint|upload", re.IGNORECASE)
_IDLE = re.compile(r"/(?:selectors|socketserver)\.py$")
_RESTS = ("lock", "loader")  # `Stack.wait` of a thread that is given nothing to do


@dataclass(frozen=True)
class BlockedAt:
    """Where a rank is blocked."""

    main: Stack
    pending: Collective | None
    told: str  # `in all_reduce #5 at train.py:95`


def waits(dumps: Mapping[int, RankDump], hung: RankDump | None = None) -> dict[int, BlockedAt]:
    """Rank -> where it is blocked, for the ranks that are left; empty unless all of them are blocked.

    hung: of the rank that hangs, as the autopsy of the hang has shown it.
    """
    found = {rank: wait for rank, dump in dumps.items() if (wait := _wait(dump) or _unmoved(dump, hung)) is not None}
    return found if len(found) == len(dumps) else {}


def lost(before: Mapping[int, BlockedAt], now: Mapping[int, BlockedAt]) -> bool:
    """Whether all ranks that are left at the second look are blocked where they were blocked at the first."""
    return bool(now) and all(before.get(rank) == wait for rank, wait in now.items())


def sentence(dead: int, found: Mapping[int, BlockedAt]) -> str:
    """The sentence that says why the ranks that are left are killed. dead: the rank that has ended, or that hangs."""
    told = ", ".join(f"rank {rank} {wait.told}" for rank, wait in sorted(found.items()))
    if dead in found:
        why = f"SIGTERM has moved nothing in rank {dead}, which hangs, and others wait"
        return f"{why}: {told}; killing them without grace"
    return f"without rank {dead} all that are left can only be blocked: {told}; killing them without grace"


def _wait(dump: RankDump) -> BlockedAt | None:
    main = dump.main
    if main is None or dump.stopped or dump.lock_held or dump.state == "D":
        return None
    if not (_for_peers(main) or _in_backward(main, dump)) or _in_handler(main) or not _nothing_beside(dump):
        return None
    return BlockedAt(main, dump.pending, in_collective(dump))


def _unmoved(dump: RankDump, hung: RankDump | None) -> BlockedAt | None:
    main = dump.main
    if main is None or hung is None or hung.rank != dump.rank or hung.main != main:
        return None
    at_work = dump.stopped or dump.lock_held or dump.state in ("R", "D") or dump.busy >= BUSY
    if at_work or _in_handler(main) or not _nothing_beside(dump):
        return None
    return BlockedAt(main, dump.pending, doing(dump))


def _nothing_beside(dump: RankDump) -> bool:
    """Whether no thread beside the main one, and no child, has anything to finish."""
    return all(map(_rests, stacks.threads(dump.stack)[:-1])) and not any(map(_works, dump.children))


def _for_peers(stack: Stack) -> bool:
    """Whether a thread stands in a call that waits for other ranks: the innermost frame is that call's."""
    inner = next((frame for frame in stack.frames if not _CALLS_OPERATOR.search(frame.path)), None)
    if inner is None:
        return False
    return bool(_C10D.search(inner.path) and _IN_C10D.search(inner.function)) or bool(_OTHERS.search(inner.path))


def _in_backward(main: Stack, dump: RankDump) -> bool:
    """Whether the main thread stands still in the backward pass, and a collective the rank has entered is not over."""
    inner = main.frames[0]
    inside = inner.path.endswith(_BACKWARD[0]) and inner.function == _BACKWARD[1]
    return inside and dump.pending is not None and dump.busy < BUSY


def _in_handler(main: Stack) -> bool:
    """Whether a signal handler runs: it interrupted a call of torch.distributed, or has the name of a handler."""
    if any(_HANDLER.search(f.function) for f in main.frames if not _DISTRIBUTED.search(f.path)):
        return True
    return any(_C10D.search(outer.path) and not inner.foreign for inner, outer in pairwise(main.frames))


def _rests(thread: Stack) -> bool:
    """Whether a thread beside the main one has nothing to finish."""
    if any(map(_saves, thread.frames)):
        return False
    idle = not thread.frames or bool(_IDLE.search(thread.frames[0].path))
    return idle or thread.wait in _RESTS or _for_peers(thread)


def _works(child: Child) -> bool:
    """Whether a process that the rank has started may have something to finish, such as a checkpoint."""
    saves = any(_saves(frame) for thread in stacks.threads(child.stack) for frame in thread.frames)
    return saves or child.state in ("R", "D")


def _saves(frame: Frame) -> bool:
    return bool(_SAVING_PATH.search(frame.path) or _SAVING.search(frame.function))
