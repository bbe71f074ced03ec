"""Reads stacks as faulthandler writes them: frames, and what the main thread waits for. Pure.

The format is that of the standard library's faulthandler: a line for each thread, its frames behind it, the innermost
first; the main thread comes last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ftlaunch_contract.pages import waiting

_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+[^\n]*\n", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<path>[^"\n]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
# not the job's own code, and of no help to a reader of the sentence
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3[^/]*/|/ftlaunch_(?:hooks|contract)/|^<"
    r"|/torch/(?:_|distributed/|utils/|nn/|autograd/|optim/|cuda/)"
)

# Where ranks wait for each other at a step boundary. Built from the module, so that a move cannot outdate it.
_BOUNDARY = re.escape("/".join(PurePath(waiting.__file__).parts[-3:])) + "$"

# What a frame says of the wait that its thread is in: the first row that fits any frame inside the job's own code.
_WAITS: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (wait, re.compile(path), re.compile(function))
    for wait, path, function in (
        ("boundary", _BOUNDARY, ""),  # for the other ranks' snapshots, or for what rank 0 decides
        ("loader", r"torch/utils/data/dataloader\.py$|torchdata/", ""),
        ("init", r"torch/distributed/", r"^(?:init_process_group|new_group|_new_process_group_helper|rendezvous)$"),
        ("collective", r"torch/(?:distributed|autograd)/|torch/nn/parallel/distributed|/store\.py$", ""),
        ("child", r"/(?:subprocess|popen_fork|popen_spawn_posix|multiprocessing/process)\.py$", ""),
        ("network", r"/(?:socket|ssl|http/client|urllib3?/.*|requests/.*)\.py$", ""),
        ("lock", r"/threading\.py$", r"^(?:wait|wait_for|acquire|join|_wait_for_tstate_lock|__enter__)$"),
        ("lock", r"/(?:queue|concurrent/futures/_base)\.py$", r"^(?:get|put|result|wait)$"),
        ("lock", r"/multiprocessing/(?:connection|queues|synchronize)\.py$", ""),
    )
)
PEERS = ("boundary", "init", "collective")  # waits that other ranks end


@dataclass(frozen=True)
class Frame:
    """A line that is being executed."""

    path: str
    line: int
    function: str

    @property
    def foreign(self) -> bool:
        """Whether the frame is of an installed package, of Python or of torch: not the job's own code."""
        return bool(_FOREIGN.search(self.path))

    def __str__(self) -> str:
        """`train.py:88 (in fetch)`."""
        name = self.path.rpartition("/")[2]
        return f"{name}:{self.line}" + ("" if self.function == "<module>" else f" (in {self.function})")


@dataclass(frozen=True)
class Stack:
    """The frames of one thread, innermost first."""

    frames: tuple[Frame, ...]

    @property
    def own(self) -> Frame | None:
        """The innermost frame of the job's own code; where all is installed code, the outermost but Python's own."""
        for frame in self.frames:
            if not frame.foreign:
                return frame
        return next((f for f in reversed(self.frames) if "-packages/" in f.path), None)

    @property
    def _inside(self) -> Sequence[Frame]:
        """The frames that the job's own code has called."""
        own = self.own
        return self.frames if own is None else self.frames[: self.frames.index(own)]

    @property
    def wait(self) -> str:
        """What the thread waits for, as its frames tell: boundary, loader, init, collective, ...; "" otherwise."""
        for wait, path, function in _WAITS:
            if any(path.search(f.path) and function.search(f.function) for f in self._inside):
                return wait
        return ""

    @property
    def call(self) -> str:
        """The function that the job's own code has called; "" where that is not known."""
        inside = [f for f in self._inside if f.function not in ("wrapper", "__call__", "<lambda>")]
        return inside[-1].function if inside else ""


def threads(dump: str) -> list[Stack]:
    """All threads of a dump, the main thread last; lines that other programs wrote in between are passed over."""
    parts = _THREAD.split(dump)[1:]
    return [Stack(tuple(Frame(m["path"], int(m["line"]), m["function"]) for m in _FRAME.finditer(p))) for p in parts]


def main_thread(dump: str) -> Stack | None:
    """The main thread, or None where it shows no frame."""
    found = threads(dump)
    return found[-1] if found and found[-1].frames else None


def main_lines(dump: str) -> list[str]:
    """The main thread's frames as they were written."""
    stack = main_thread(dump)
    return [] if stack is None else [f'File "{f.path}", line {f.line} in {f.function}' for f in stack.frames]
