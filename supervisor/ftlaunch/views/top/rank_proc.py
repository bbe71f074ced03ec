"""What /proc shows of a rank, as lines: for ranks that answer nothing. It disturbs nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ftlaunch.autopsy.procfs import Process, Thread

_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a device", "T": "is stopped", "t": "is traced", "Z": "has ended",
           "I": "is idle"}  # fmt: skip


def proc_lines(process: Process) -> Iterator[str]:
    """Threads, the main one first: its state, its system call, where in the kernel it waits, its kernel's stack."""
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
    """Whether the process is stopped: it answers nothing until it is continued."""
    return process.main is not None and process.main.state in ("T", "t")


def _sentence(thread: Thread, *, main: bool) -> str:
    name = "main thread" if main else f"thread {thread.tid}"
    told = f"{name} ({thread.comm}) {_STATES.get(thread.state, f'is in state {thread.state}')}"
    told += f", in {thread.syscall}" if thread.syscall else ""
    told += f" of {thread.file}" if thread.file else ""
    told += f", at {thread.wchan}" if thread.wchan else ""
    return f"{told}; it has run {thread.cpu:.1f} s"


def _kernel_stack(pid: int) -> list[str]:
    """Functions of the kernel, the innermost first; none where they may not be read."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/stack").read_text()
    except OSError:
        return []
    return [line.partition("] ")[2] or line for line in text.splitlines()]
