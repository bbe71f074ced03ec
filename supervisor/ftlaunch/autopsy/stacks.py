"""Parses stacks in the format of faulthandler, and concludes what a thread waits for. Pure.

The standard library's faulthandler writes a line for each thread, followed by the thread's frames, innermost first.
The main thread comes last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ftlaunch_contract.pages import waiting

_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+[^\n]*\n", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<path>[^"\n]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
# Paths of installed code, of Python and of torch, which do not help a reader to find the job's own line.
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3[^/]*/|/ftlaunch_(?:hooks|contract)/|^<"
    r"|/torch/(?:_|distributed/|utils/|nn/|autograd/|optim/|cuda/)"
)

# Where ranks wait for each other at a step boundary. Built from the module, so that a move cannot outdate it.
_BOUNDARY = re.escape("/".join(PurePath(waiting.__file__).parts[-3:])) + "$"

# Kinds of waits, with patterns of the path and the function of a frame that is called from the job's own code. The
# first row that fits any such frame decides.
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
    """One frame of a stack: the line that is being executed in a function."""

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
        """The innermost frame of the job's own code; if there is none, the outermost frame of installed packages."""
        for frame in self.frames:
            if not frame.foreign:
                return frame
        return next((frame for frame in reversed(self.frames) if "-packages/" in frame.path), None)

    @property
    def _inside(self) -> Sequence[Frame]:
        """The frames that the job's own code has called, innermost first."""
        own = self.own
        return self.frames if own is None else self.frames[: self.frames.index(own)]

    @property
    def wait(self) -> str:
        """What the thread waits for: a kind of `_WAITS`, or "" if the frames do not tell."""
        for wait, path, function in _WAITS:
            if any(path.search(frame.path) and function.search(frame.function) for frame in self._inside):
                return wait
        return ""

    @property
    def call(self) -> str:
        """The function that the job's own code has called; "" if unknown."""
        functions = [frame.function for frame in self._inside]
        named = [name for name in functions if name not in ("wrapper", "__call__", "<lambda>")]
        return named[-1] if named else ""


def threads(dump: str) -> list[Stack]:
    """Return the stacks of all threads of a dump, the main thread's last.

    Lines that other programs wrote in between are ignored.
    """
    return [Stack(_frames(part)) for part in _THREAD.split(dump)[1:]]


def _frames(part: str) -> tuple[Frame, ...]:
    return tuple(
        Frame(path=match["path"], line=int(match["line"]), function=match["function"])
        for match in _FRAME.finditer(part)
    )


def main_thread(dump: str) -> Stack | None:
    """Return the main thread's stack; None if the thread shows no frame."""
    stacks = threads(dump)
    return stacks[-1] if stacks and stacks[-1].frames else None


def main_lines(dump: str) -> list[str]:
    """Return the main thread's frames, in the words of faulthandler and without indentation."""
    stack = main_thread(dump)
    return [] if stack is None else [f'File "{f.path}", line {f.line} in {f.function}' for f in stack.frames]
