"""Gets the Python stacks of a rank's threads, or what /proc shows of a rank that gives no answer.

First the worker server inside the rank is asked, which holds the interpreter's lock while it walks the stacks. If there
is no answer, /proc shows something without disturbing the rank, and the signal of an autopsy makes the rank write its
stacks. The signal interrupts the rank's main thread and walks stacks while other threads run, so the signal is sent
only after the user has agreed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from ftlaunch.autopsy import procfs, stacks, worker_server
from ftlaunch.autopsy.procfs import Process, Thread
from ftlaunch.common.formatting import printable
from ftlaunch.memory import stack_file
from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.files.regular_file import file_size
from ftlaunch_contract.protocol import STACKS_SIGNAL, stacks_path, witness_path

_ANSWER_SECONDS = 5.0
_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a device", "T": "is stopped", "t": "is traced", "Z": "has ended",
           "I": "is idle"}  # fmt: skip
_MUTE = "the hooks are not in the process, or its interpreter has ended: to ask it would end it"


class NoStacks(Exception):
    """The stacks of a rank are not available; the message says why."""


class RankStacks:
    """The stacks of one rank, on this machine or another."""

    def __init__(self, rank: int, pid: int | None, memory_dirs: Sequence[Path]) -> None:
        """Keep how to reach the rank.

        Args:
            rank: number of the rank.
            pid: pid of the rank; None if the rank runs on another machine.
            memory_dirs: the job's memory directories on this machine.
        """
        self.rank = rank
        self._pid = pid
        self._dirs = memory_dirs

    @property
    def interruptible(self) -> bool:
        """Whether the rank can be asked by a signal: the rank is on this machine, and not stopped."""
        return self._pid is not None and not stopped(procfs.read_process(self._pid))

    def ask(self) -> list[str]:
        """Ask the worker server, and return the stacks of all threads as lines.

        Raises:
            NoStacks: there is no answer.
        """
        if self._pid is not None and stopped(procfs.read_process(self._pid)):
            raise self._refusal(f"it is stopped, and answers nothing until `kill -CONT {self._pid}`")
        if self._pid is not None and not procfs.can_be_asked(self._pid):
            raise self._refusal(_MUTE)
        why = "it is on another machine: ask there"
        for directory in self._dirs:
            path = witness_path(directory, self.rank)
            if not path.exists():
                why = why if self._pid is None else "it has no worker server, which torch brings"
                continue
            try:
                dump = worker_server.ask(path, "dump_traceback", _ANSWER_SECONDS).decode(errors="replace")
            except worker_server.NoAnswer as silence:
                why = str(silence)
                if silence.connected:
                    why += ": no other thread got the interpreter's lock"
                continue
            return [printable(line) for line in stack_lines(dump)]
        raise self._refusal(why)

    def interrupt(self) -> list[str]:
        """Interrupt the rank by a signal, and return the stacks that the rank then writes, as lines.

        Raises:
            NoStacks: the signal cannot be sent, or the rank wrote nothing.
        """
        if self._pid is None:
            raise self._refusal("it is on another machine: ask there")
        path = next((found for folder in self._dirs if (found := stacks_path(folder, self.rank)).exists()), None)
        if path is None:
            raise self._refusal(_MUTE)
        begin = file_size(path)
        try:
            self._signal(self._pid)
        except OSError as error:
            raise self._refusal(f"process {self._pid}: {(error.strerror or str(error)).lower()}") from error
        if not (dump := stack_file.added(path, begin)):
            raise self._refusal("the process wrote none when it was interrupted")
        return [printable(line) for line in stack_lines(dump)]

    def _signal(self, pid: int) -> None:
        """Send the signal to this very process, if the process handles the signal. Raises NoStacks or OSError."""
        pidfd = open_end(pid)
        try:
            if not procfs.catches_stacks_signal(pid):
                raise self._refusal(_MUTE)
            signal.pidfd_send_signal(pidfd, STACKS_SIGNAL)
        finally:
            os.close(pidfd)

    def seen(self) -> list[str]:
        """Return what /proc shows about the rank, as lines; empty for a rank on another machine."""
        return [] if self._pid is None else [printable(line) for line in proc_lines(procfs.read_process(self._pid))]

    def _refusal(self, why: str) -> NoStacks:
        return NoStacks(f"cannot show the stacks of rank {self.rank}: {why}")


def stack_lines(dump: str) -> Iterator[str]:
    """Yield the threads of a dump that run Python, the main thread first, each with its frames, innermost first."""
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


def proc_lines(process: Process) -> Iterator[str]:
    """Yield a line for each thread, the main thread first, then the main thread's stack in the kernel.

    A line has the state, the system call, the place in the kernel and the processor time of a thread.
    """
    if not process.threads:
        yield f"process {process.pid} has ended"
        return
    yield f"/proc shows of process {process.pid}:"
    for thread in sorted(process.threads, key=lambda thread: thread.tid != process.pid):
        yield f"  {_sentence(thread, main=thread.tid == process.pid)}"
    if stack := _kernel_stack(process.pid):
        yield "its main thread in the kernel:"
        yield from (f"  {line}" for line in stack)


def stopped(process: Process) -> bool:
    """Return whether the process is stopped or traced, so that it answers nothing until continued."""
    return process.main is not None and process.main.state in ("T", "t")


def _sentence(thread: Thread, *, main: bool) -> str:
    name = "main thread" if main else f"thread {thread.tid}"
    sentence = f"{name} ({thread.comm}) {_STATES.get(thread.state, f'is in state {thread.state}')}"
    sentence += f", in {thread.syscall}" if thread.syscall else ""
    sentence += f" of {thread.file}" if thread.file else ""
    sentence += f", at {thread.wchan}" if thread.wchan else ""
    return f"{sentence}; it has run {thread.cpu:.1f} s"


def _kernel_stack(pid: int) -> list[str]:
    """Return the functions of the main thread's kernel stack, innermost first; empty if reading is not permitted."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/stack").read_text()
    except OSError:
        return []
    return [line.partition("] ")[2] or line for line in text.splitlines()]
