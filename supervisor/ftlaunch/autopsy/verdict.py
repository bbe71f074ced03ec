"""The verdict of an autopsy: which ranks are behind, and in words what each rank does or waits for. Pure.

A rank is behind if it is in no collective, and has not entered one that another rank is in. The culprit is the rank
that the others wait for, as `hang_detection.laggard` has chosen it. The caller names the culprit, and `sentence` goes
on with clauses:

    [rank 2 hangs:] it sleeps at train.py:88 (in fetch); ranks 0 and 1 wait for it in all_reduce #12 at train.py:95
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ftlaunch.autopsy import flight_recorder, stacks
from ftlaunch.autopsy.flight_recorder import Collective
from ftlaunch.autopsy.rank_dump import BUSY, RankDump
from ftlaunch.autopsy.stacks import Stack
from ftlaunch.ranks.view import RankView

_DISK = ("read", "pread64", "readv", "write", "pwrite64", "writev", "fsync", "fdatasync", "openat", "getdents64")
_STATES = {"R": "running", "S": "sleeping", "D": "in disk sleep", "T": "stopped", "Z": "ended"}


# --- all ranks ----------------------------------------------------------------------------------------------


def with_dumps(views: Sequence[RankView], dumps: Mapping[int, RankDump]) -> list[RankView]:
    """Return the views that were taken when a hang was detected, completed by the dumps of the autopsy."""
    behind = flight_recorder.behind({rank: dump.flight for rank, dump in dumps.items() if dump.flight is not None})
    return [
        view._replace(
            stopped=view.stopped or dumps[view.rank].stopped,
            waiting=dumps[view.rank].waiting,
            behind=view.rank in behind,
        )
        if view.rank in dumps
        else view
        for view in views
    ]


def sentence(culprit: int, dumps: Mapping[int, RankDump]) -> str:
    """Return where the culprit is, and what the others wait for.

    Args:
        culprit: number of the rank that the others wait for.
        dumps: the dumps of all examined ranks, by rank.

    Returns:
        The rest of a sentence that has named the culprit; "" if nothing is known of the culprit.
    """
    if culprit not in dumps:
        return ""
    flights = {rank: dump.flight for rank, dump in dumps.items() if dump.flight is not None}
    others = [rank for rank in dumps if rank != culprit]
    if dumps[culprit].waiting:
        if others and flight_recorder.waiting_in(flights, [culprit, *others]):
            also = f"{'does' if len(others) == 1 else 'do'} {_ranks(others)}"
            return f"it {doing(dumps[culprit])}, and so {also}: all have entered it, none gets out (the network?)"
        found = flight_recorder.mismatched(culprit, flights) or flight_recorder.crossed(culprit, flights)
        if found is not None:
            other, theirs, mine = found
            rest = [rank for rank in others if rank != other]
            disagreement = _disagreement(culprit=dumps[culprit], other=dumps[other], theirs=theirs, mine=mine)
            return "; ".join([disagreement, *_waiters(rest, dumps)])
    return "; ".join([f"it {doing(dumps[culprit])}", *_waiters(others, dumps)])


def _disagreement(*, culprit: RankDump, other: RankDump, theirs: Collective, mine: Collective) -> str:
    """Return that two ranks wait for each other in different collectives.

    Args:
        culprit: the rank that the sentence has named.
        other: the other rank.
        theirs: collective of the other rank.
        mine: collective of the culprit.
    """
    my_words = str(mine)
    their_words = str(theirs)
    why = "they disagree on their collectives"
    if mine.group != theirs.group:
        my_words = f"{mine} of group {mine.group}"
        their_words = f"{theirs} of group {theirs.group}"
        why = "they take their groups in different orders"
    elif mine.name == theirs.name:
        my_words = f"{mine} of {mine.sizes}"
        their_words = f"{theirs} of {theirs.sizes}"
    now = f"was in {their_words}" if theirs.over else f"is in {their_words}{place(other)}"
    return f"it waits in {my_words}{place(culprit)}, but rank {other.rank} {now}: {why}"


def _waiters(ranks: Sequence[int], dumps: Mapping[int, RankDump]) -> Iterator[str]:
    """Yield what the other ranks do, one clause for all ranks that do the same.

    Such as `ranks 0 and 1 wait for it in all_reduce #12 at train.py:95`, and `rank 3 sleeps at train.py:88`.
    """
    groups: dict[tuple[bool, str], list[int]] = {}
    for rank in ranks:
        dump = dumps[rank]
        waits = bool(dump.waiting)
        words = in_collective(dump) if waits else doing(dump)
        groups.setdefault((waits, words), []).append(rank)
    for (waits, words), same in groups.items():
        is_single = len(same) == 1
        if waits:
            yield f"{_ranks(same)} {'waits' if is_single else 'wait'} for it {words}"
        else:
            yield f"{'' if is_single else 'each of '}{_ranks(same)} {words}"


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words: `rank 1`, or `ranks 0, 1 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


# --- one rank -----------------------------------------------------------------------------------------------


def doing(dump: RankDump) -> str:
    """Return what a rank does, as a verb with its place: `sleeps at train.py:88 (in fetch)`."""
    main = dump.main
    at = place(dump)
    if main is None:
        return _without_stack(dump)
    if dump.stopped:
        return f"was stopped{at}"
    if dump.lock_held:
        return f"is in C code that keeps the interpreter's lock (GIL), called{at} ({_kernel(dump)})"
    if dump.state == "D":
        return f"is in an uninterruptible system call{at} ({_kernel(dump)})"
    if dump.waiting:
        return f"waits {in_collective(dump)}"
    return _waits(dump, main, at) or _works(dump, at)


def _without_stack(dump: RankDump) -> str:
    known = _kernel(dump)
    if dump.stack.strip():
        return f"runs no Python code: its interpreter is ending, or has not begun ({known})"
    return f"shows no Python stack ({known})"


def _waits(dump: RankDump, main: Stack, at: str) -> str:
    """Return what the rank waits for, as its stack tells; "" if the stack does not tell.

    Args:
        dump: dump of the rank.
        main: stack of the rank's main thread.
        at: place of the main thread, in words.
    """
    if main.wait == "loader":
        return f"waits for its data loader{at}{_worker(dump)}"
    if main.wait == "lock" or dump.wants_lock:
        return f"waits for a lock or for another thread{at}{_holder(dump)}"
    if main.wait == "child":
        return f"waits for a process that it has started{at}"
    if main.wait == "network":
        return f"waits for the network{at}"
    return ""


def _works(dump: RankDump, at: str) -> str:
    """Return what a rank does that waits for nobody. at: place of the main thread, in words."""
    if dump.busy >= BUSY or dump.state == "R":
        return f"runs{at} ({dump.busy:.0%} of a processor)"
    if dump.sleeps:
        return f"sleeps{at}"
    if dump.file and dump.system_call in _DISK:
        return f"is in {dump.system_call} of {dump.file}{at}"
    return f"is{at} ({_kernel(dump)})"


def _holder(dump: RankDump) -> str:
    """Return which thread may hold the lock: a thread of the same rank that is in a collective; "" if there is none."""
    for thread in stacks.threads(dump.stack)[:-1]:
        if thread.wait == "collective":
            what = dump.pending or thread.call
            return f", which may be held by the rank's thread that is in {what}" + (
                f" at {thread.own}" if thread.own else ""
            )
    return ""


def _worker(dump: RankDump) -> str:
    """Return where the first worker is that shows where it works; else the workers' states; "" without workers."""
    for child in dump.children:
        stack = stacks.main_thread(child.stack)
        if stack is not None and stack.own is not None and not stack.wait:
            others = f" (one of {len(dump.children)})" if len(dump.children) > 1 else ""
            return f", whose worker with pid {child.pid}{others} is at {stack.own}"
    if dump.children:
        workers = ", ".join(f"{child.pid} ({child.state})" for child in dump.children[:4])
        return f", whose workers are {workers}"
    return ""


def in_collective(dump: RankDump) -> str:
    """Return where a rank waits for other ranks: `in all_reduce #1237 at train.py:95`."""
    main = dump.main
    pending = dump.pending
    if main is not None and main.wait == "boundary":
        return f"at a step boundary{place(dump)}"
    if main is not None and main.wait == "init":
        return f"in {main.call}{place(dump)}"
    if pending is None:
        return f"in {main.call if main is not None else 'a collective'}{place(dump)}"
    group = "" if pending.group in ("", "0") else f" of group {pending.group}"
    return f"in {pending}{group}{place(dump)}"


def place(dump: RankDump) -> str:
    """Return the place of the main thread, with a space before: ` at train.py:95`; "" if the place is unknown."""
    return "" if dump.main is None or dump.main.own is None else f" at {dump.main.own}"


def _kernel(dump: RankDump) -> str:
    """Return what /proc shows of the main thread: `sleeping in futex`."""
    state = _STATES.get(dump.state, "state not known")
    wait = dump.system_call or dump.channel
    where = f" in {wait}" if wait and dump.state != "R" else ""
    about = f" of {dump.file}" if dump.file else ""
    return f"{state}{where}{about}"
