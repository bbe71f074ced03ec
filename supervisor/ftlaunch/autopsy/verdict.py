"""What one rank does, in words, from what an autopsy has collected of it. Pure."""

from __future__ import annotations

from ftlaunch.autopsy import stacks
from ftlaunch.autopsy.rank_dump import BUSY, RankDump
from ftlaunch.autopsy.stacks import Stack

_DISK = ("read", "pread64", "readv", "write", "pwrite64", "writev", "fsync", "fdatasync", "openat", "getdents64")
_STATES = {"R": "running", "S": "sleeping", "D": "in disk sleep", "T": "stopped", "Z": "ended"}


def doing(remains: RankDump) -> str:
    """What a rank does, as a verb with its place: `sleeps at train.py:88 (in fetch)`."""
    main, at = remains.main, place(remains)
    if main is None:
        return _without_stack(remains)
    if remains.stopped:
        return f"was stopped{at}"
    if remains.lock_held:
        return f"is in C code that keeps the interpreter's lock (GIL), called{at} ({_kernel(remains)})"
    if remains.state == "D":
        return f"is in an uninterruptible system call{at} ({_kernel(remains)})"
    if remains.waiting:
        return f"waits {in_collective(remains)}"
    return _waits(remains, main, at) or _works(remains, at)


def _without_stack(remains: RankDump) -> str:
    known = _kernel(remains)
    if remains.stack.strip():
        return f"runs no Python code: its interpreter is ending, or has not begun ({known})"
    return f"shows no Python stack ({known})"


def _waits(remains: RankDump, main: Stack, at: str) -> str:
    """What it waits for by its stack; "" where that does not tell."""
    if main.wait == "loader":
        return f"waits for its data loader{at}{_worker(remains)}"
    if main.wait == "lock" or remains.wants_lock:
        return f"waits for a lock or for another thread{at}{_holder(remains)}"
    if main.wait == "child":
        return f"waits for a process that it has started{at}"
    if main.wait == "network":
        return f"waits for the network{at}"
    return ""


def _works(remains: RankDump, at: str) -> str:
    if remains.busy >= BUSY or remains.state == "R":
        return f"runs{at} ({remains.busy:.0%} of a processor)"
    if remains.sleeps:
        return f"sleeps{at}"
    if remains.file and remains.system_call in _DISK:
        return f"is in {remains.system_call} of {remains.file}{at}"
    return f"is{at} ({_kernel(remains)})"


def _holder(remains: RankDump) -> str:
    """A thread of the same rank that is in a collective may be what has the lock."""
    for thread in stacks.threads(remains.stack)[:-1]:
        if thread.wait == "collective":
            what = remains.pending or thread.call
            return f", which its thread may hold that is in {what}" + (f" at {thread.own}" if thread.own else "")
    return ""


def _worker(remains: RankDump) -> str:
    """Where the loader's worker processes are, the first that shows a stack."""
    for child in remains.children:
        stack = stacks.main_thread(child.stack)
        if stack is not None and stack.own is not None and not stack.wait:
            others = f" (one of {len(remains.children)})" if len(remains.children) > 1 else ""
            return f", whose worker with pid {child.pid}{others} is at {stack.own}"
    if remains.children:
        return f", whose workers are {', '.join(f'{c.pid} ({c.state})' for c in remains.children[:4])}"
    return ""


def in_collective(remains: RankDump) -> str:
    """`in all_reduce #1237 at train.py:95`."""
    main = remains.main
    pending = remains.pending
    if main is not None and main.wait == "boundary":
        return f"at a step boundary{place(remains)}"
    if main is not None and main.wait == "init":
        return f"in {main.call}{place(remains)}"
    if pending is None:
        return f"in {main.call if main is not None else 'a collective'}{place(remains)}"
    group = "" if pending.group in ("", "0") else f" of group {pending.group}"
    return f"in {pending}{group}{place(remains)}"


def place(remains: RankDump) -> str:
    """` at train.py:95`, or nothing."""
    return "" if remains.main is None or remains.main.own is None else f" at {remains.main.own}"


def _kernel(remains: RankDump) -> str:
    """What /proc shows of its main thread."""
    word = _STATES.get(remains.state, "state not known")
    where = remains.system_call or remains.channel
    about = f" of {remains.file}" if remains.file else ""
    return f"{word}{f' in {where}' if where and remains.state != 'R' else ''}{about}"
