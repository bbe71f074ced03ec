"""The program that collects an autopsy: it writes what can be had of every rank into files of the autopsy's directory.

`client.py` starts the program as a child of the supervisor, or of an agent, with a request on stdin. Nothing here can
hold the supervisor up: the supervisor kills the program when the time is over, and reads the files that are there.
The files are rank_<r>.stack.txt, rank_<r>.proc.json, rank_<r>.flight.json and gpu.txt. What could not be had is in
rank_<r>.proc.json under `missing`, with its cause. One thread for each rank collects.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import linecache
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ftlaunch.autopsy import flight_recorder, procfs, stacks, worker_server
from ftlaunch.memory import stack_file
from ftlaunch_contract import protocol
from ftlaunch_contract.files.regular_file import file_size
from ftlaunch_contract.protocol import STACKS_SIGNAL

_ANSWER_SECONDS = 0.6  # for a rank's worker server to answer a question
_SPAN_SECONDS = 0.25  # between the two measurements of what threads use
_CHILDREN_SECONDS = 0.8  # for the stacks of a rank's children
_GPU_SECONDS = 1.5  # for nvidia-smi
_GPU_COMMAND = (
    "nvidia-smi",
    "--query-gpu=index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,clocks.sm,ecc.errors.uncorrected.volatile.total",
    "--format=csv",
)
_ENDED = "the rank's interpreter has ended"
# Numbers of the system call, because glibc before 2.30 has no function tgkill().
_TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine())
_syscall = ctypes.CDLL(None).syscall


class Subject:
    """Collects what can be had of one rank. One thread at a time uses a subject."""

    def __init__(self, request: dict[str, Any], directory: Path, memory: Path) -> None:
        """Collect nothing yet.

        Args:
            request: the rank's part of the request (`client.Autopsy` has the keys).
            directory: directory of the autopsy.
            memory: directory of the ranks' pages, stacks and sockets.
        """
        self.rank = request["rank"]
        self.pid = request["pid"]
        self.can_show = request["stacks"]
        self.log = Path(request["log"])
        self.why = request["why"]
        self._directory = directory
        self._stacks = protocol.stacks_path(memory, self.rank)
        self._witness = protocol.witness_path(memory, self.rank)
        self._children: list[dict[str, Any]] = []
        self._pids: list[int] = []
        self._sources: dict[str, str] = {}
        self._lock_held: bool | None = None
        self.process = procfs.Process(self.pid, [])

    @property
    def stopped(self) -> bool:
        """Whether the rank was stopped at `read_processes`. A stopped rank answers nothing until it is continued."""
        main = self.process.main
        return main is not None and main.state in ("T", "t")

    def read_processes(self, parent_of: dict[int, int]) -> None:
        """Read what /proc shows of the rank and its descendants. This comes first, because reading disturbs nothing.

        Args:
            parent_of: the parent's pid of every process, by pid.
        """
        self.process = procfs.read_process(self.pid)
        self._read_at = time.monotonic()
        self._pids = procfs.below(self.pid, parent_of)
        for pid in self._pids:
            child = procfs.read_process(pid)
            main = child.main
            if main is not None:
                self._children.append(
                    {"pid": pid, "comm": main.comm, "state": main.state, "wchan": main.wchan,
                     "syscall": main.syscall, "rss": child.rss, "stack": ""}
                )  # fmt: skip

    def recall(self) -> None:
        """Ask the rank's worker server for the flight recorder, which does not disturb the rank's own threads."""
        try:
            dump = flight_recorder.kept(worker_server.flight_recorder(self._witness, _ANSWER_SECONDS))
            self._write("flight.json", json.dumps(dump))
        except worker_server.NoAnswer as silence:
            self.process.missing["flight"] = str(silence)

    def examine(self) -> None:
        """Take the stacks, then what takes longer. The files are replaced as more is known."""
        stack = self._request_stacks(self.process) if self.can_show and not self._has_ended else ""
        if self.stopped:
            self.recall()
        self._write("stack.txt", stack)
        self._append_to_log(stack)
        if not stack:
            self.process.missing["stack"] = self._why_no_stack()
        if self._has_ended:
            self.process.missing["lock_held"] = _ENDED
        else:
            self._test_lock()
        time.sleep(max(self._read_at + _SPAN_SECONDS - time.monotonic(), 0.0))
        procfs.compare(self.process, procfs.read_process(self.pid), time.monotonic() - self._read_at)
        self._write_facts()
        self._examine_children()
        self._write("stack.txt", stack + "".join(map(_child_stack, self._children)))
        self._write_facts()
        self._sources = dict(_sources(stack))
        self._write_facts()

    @property
    def _has_ended(self) -> bool:
        """Whether the rank's interpreter has ended."""
        return self.can_show and not procfs.can_be_asked(self.pid)

    def _why_no_stack(self) -> str:
        if not self.can_show:
            return "the hooks are not in the process"
        return _ENDED if self._has_ended else "the process wrote no stacks in its time"

    def _examine_children(self) -> None:
        """Take the stacks of those children that can show them, as long as there is time."""
        until = time.monotonic() + _CHILDREN_SECONDS
        for child in self._children:
            if time.monotonic() < until and procfs.shows_stacks(child["pid"], self.pid):
                child["stack"] = self._request_stacks(procfs.read_process(child["pid"]))

    def _test_lock(self) -> None:
        """Find out whether some thread of the rank keeps the interpreter's lock."""
        try:
            self._lock_held = worker_server.lock_held(self._witness, _ANSWER_SECONDS)
        except worker_server.NoAnswer as silence:
            self.process.missing["lock_held"] = str(silence)

    def _request_stacks(self, process: procfs.Process) -> str:
        """Return the stacks of all threads of a process, written by a thread that answers; "" if none answers.

        The main thread is asked first, so that its stack shows where it is, and not where it gets to before another
        thread answers. If the main thread cannot be interrupted (state D), another thread is asked.
        """
        others = [thread.tid for thread in process.threads if thread.tid != process.pid]
        for tid in [process.pid, *others[-1:]]:
            if stack := self._ask(process.pid, tid):
                return stack
        return ""

    def _ask(self, pid: int, tid: int) -> str:
        """Return the stacks that a thread writes into the rank's stack file; "" if the thread does not answer."""
        begin = file_size(self._stacks)
        if not _signal(pid, tid, STACKS_SIGNAL):
            return ""
        _signal(pid, pid, signal.SIGCONT)
        return stack_file.added(self._stacks, begin)

    def _append_to_log(self, stack: str) -> None:
        """Append the stacks to the rank's log, where people look first."""
        text = f"\n--- ftlaunch: stacks of rank {self.rank}: {self.why}\n{stack}"
        with contextlib.suppress(OSError), self.log.open("ab", buffering=0) as file:
            file.write(text.encode())

    def _write_facts(self) -> None:
        facts = self.process.as_dict() | {
            "rank": self.rank,
            "lock_held": self._lock_held,
            "children": self._children,
            "sources": self._sources,
        }
        self._write("proc.json", json.dumps(facts, indent=1))

    def _write(self, name: str, text: str) -> None:
        _write(self._directory / f"rank_{self.rank}.{name}", text)


def _write(path: Path, text: str) -> None:
    """Replace a file by rename, because the supervisor may read the file at any time."""
    draft = path.with_name(f".{path.name}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    draft.replace(path)


def _child_stack(child: dict[str, Any]) -> str:
    return f"\n--- child {child['pid']} ({child['comm']})\n{child['stack']}" if child["stack"] else ""


def _sources(stack: str) -> Iterator[tuple[str, str]]:
    """Yield the job's own lines that are being executed, as "path:line" and text.

    The sources are read last, because the disk with the sources may be what hangs.
    """
    for thread in stacks.threads(stack):
        if (own := thread.own) is not None:
            yield f"{own.path}:{own.line}", linecache.getline(own.path, own.line).strip()[:200]


def _signal(pid: int, tid: int, signum: int) -> bool:
    """Signal a thread. Return False if the thread is gone.

    If the number of tgkill() is unknown on this machine, any thread of the process gets the signal.
    """
    if _TGKILL is not None:
        return bool(_syscall(_TGKILL, pid, tid, int(signum)) == 0)
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def _gpus() -> subprocess.Popen[str] | None:
    """Start nvidia-smi. Return None if this machine has none."""
    try:
        return subprocess.Popen(_GPU_COMMAND, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError:
        return None  # no NVIDIA GPU here


def main() -> None:
    """Read the request (one JSON object) from stdin, and write what can be had."""
    request = json.load(sys.stdin)
    directory = Path(request["directory"])
    memory = Path(request["memory"])
    begun = time.monotonic()
    # A pid still belongs to the rank while the rank's parent is this program's parent.
    parent_of = procfs.parents()
    ranks = [entry for entry in request["ranks"] if parent_of.get(entry["pid"]) == os.getppid()]
    subjects = [Subject(entry, directory, memory) for entry in ranks]
    gpus = _gpus()
    with ThreadPoolExecutor(max_workers=max(len(subjects), 1)) as pool:
        # All ranks are read before the first is disturbed.
        list(pool.map(lambda subject: subject.read_processes(parent_of), subjects))
        list(pool.map(Subject.recall, [subject for subject in subjects if not subject.stopped]))
        list(pool.map(Subject.examine, [subject for subject in subjects if not subject.stopped]))
        # Stopped ranks come last, because once continued they may end what the others wait for.
        list(pool.map(Subject.examine, [subject for subject in subjects if subject.stopped]))
    if gpus is not None:
        try:
            text, _ = gpus.communicate(timeout=max(begun + _GPU_SECONDS - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            gpus.kill()
            text = f"nvidia-smi did not answer within {_GPU_SECONDS} s\n"
        _write(directory / "gpu.txt", text)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:  # of the autopsy's files only: what cannot be had of a rank is no error
        sys.exit(f"ftlaunch: the autopsy is not complete: {error.filename}: {error.strerror}")
