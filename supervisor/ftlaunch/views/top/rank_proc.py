"""Formats what /proc shows about a rank that gives no answer. Reading /proc does not disturb the rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ftlaunch.autopsy.procfs import Process, Thread

_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a device", "T": "is stopped", "t": "is traced", "Z": "has ended",
           "I": "is idle"}  # fmt: skip


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
