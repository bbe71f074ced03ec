"""What a rank's threads are doing now: asked of the worker server inside it, which holds the interpreter's lock for it.

A signal, as an autopsy sends it, would interrupt the rank's main thread, and would have its stacks walked while other
threads run on: that is for ranks that hang.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ftlaunch.autopsy import stacks, worker_server
from ftlaunch.common.formatting import duration, printable
from ftlaunch_contract.protocol import witness_path

_ANSWER = 5.0  # seconds


class NoStacks(Exception):
    """A rank's stacks cannot be had; the message says why."""


def stacks_of(rank: int, memory_dirs: Sequence[Path]) -> list[str]:
    """Lines: the stacks of all its threads, as `stack_lines` gives them. Raises NoStacks.

    memory_dirs: of this job on this machine; the rank is known in one of them.
    """
    why = "it is on another machine: ask there"
    for directory in memory_dirs:
        path = witness_path(directory, rank)
        if not path.exists():
            continue
        try:
            dump = worker_server.ask(path, "dump_traceback", _ANSWER).decode(errors="replace")
        except worker_server.NoAnswer as silence:
            held = (
                f"; within {duration(_ANSWER)} no other thread got the interpreter's lock" if silence.connected else ""
            )
            why = f"{silence}{held}"
            continue
        return [printable(line) for line in stack_lines(dump)]
    raise NoStacks(f"cannot show the stacks of rank {rank}: {why}")


def stack_lines(dump: str) -> Iterator[str]:
    """The threads of a dump that run Python, the main thread first; of each its frames, the innermost first."""
    main, *others = [*reversed(stacks.threads(dump))] or [stacks.Stack(())]
    yield f"main thread, at {main.own}:" if main.own is not None else "main thread:"
    yield from _frames(main)
    for number, thread in enumerate((thread for thread in others if thread.frames), 1):
        yield ""
        yield f"thread {number}:"
        yield from _frames(thread)


def _frames(thread: stacks.Stack) -> Iterator[str]:
    if not thread.frames:
        yield "  runs no Python"
    for frame in thread.frames:
        yield f"  {frame.function}:{frame.line}  {frame.path}"
