"""Runs one job with failing system calls, and judges its end."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.anomalies.calls import ERRORS, failed_calls
from scripts.anomalies.jobs import SCENES, START_SECONDS, Job, Scene, wait_for
from scripts.anomalies.ranks import training

from ftlaunch_contract.protocol import EXIT_BUG, EXIT_DONE, EXIT_GIVEN_UP, EXIT_SAVED, EXIT_USAGE

_DEADLINE = 60.0
"""seconds for a job that usually takes two to five"""
_EXPLANATIONS = ("cannot", "why:", "the same command goes on")
_LAST_EVENTS = ("job_finished", "job_failed", "job_stopped", "notified")


class CannotBegin(Exception):
    """No call could be made to fail; the message says why."""


@dataclass(frozen=True)
class Anomaly:
    """One failing call, or several of one kind.

    Attributes:
        process: a key of SCENES.
        call: the name of the system call.
        error: the name of the error.
        number: the number of the call, counted from 1 when the ranks run.
        thread: the number of the thread; 0 is the main thread.
        step: every step-th call after the first fails, too; 0 for the first call alone.
        last: the number of the last call that may fail.
    """

    process: str
    call: str
    error: str
    number: int
    thread: int = 0
    step: int = 0
    last: int = 0

    def __str__(self) -> str:
        thread = f", thread {self.thread}" if self.thread else ""
        step = f" and each {self.step}th after it" if self.step else ""
        return f"{self.process}{thread}: {self.call} {self.error} #{self.number}{step}"

    @property
    def options(self) -> list[str]:
        """The options of strace that make the calls fail."""
        when = f"{self.number}..{self.last}+{self.step}" if self.step else str(self.number)
        return ["-e", f"trace={self.call}", "-e", f"inject={self.call}:error={self.error}:when={when}"]


@dataclass(frozen=True)
class Failed:
    """How many calls of one anomaly have failed.

    Attributes:
        calls: the number of failures in the thread with the most of them.
        possible: for each failure in any thread that Linux can give: how many calls of the thread failed before.
        are_possible: whether Linux can give all the failures.
    """

    calls: int
    possible: Sequence[int]
    are_possible: bool


@dataclass(frozen=True)
class Outcome:
    """The end of a job.

    Attributes:
        failed: the failures of each anomaly.
        is_done: whether the job has finished, instead of being given up.
        wrong: what must not happen; empty if the end is as it should be.
        said: everything on the terminals.
    """

    failed: Sequence[Failed]
    is_done: bool
    wrong: str
    said: str

    @property
    def are_possible(self) -> bool:
        """Whether Linux can give all the failures."""
        return all(failed.are_possible for failed in self.failed)


def run(anomalies: Sequence[Anomaly], home: Path) -> Outcome:
    """Run a job in which a rank or a node is killed once, while calls of our processes fail.

    Args:
        anomalies: the failing calls, each of another process of one kind of job.
        home: an empty directory.

    Raises:
        CannotBegin: strace cannot attach, or the ranks do not run.
    """
    job = Job(SCENES[anomalies[0].process], home)
    watched = [
        _Watched(
            scene=SCENES[anomaly.process],
            thread=anomaly.thread,
            log=home / f"strace_{number}",
            options=anomaly.options,
        )
        for number, anomaly in enumerate(anomalies)
    ]
    try:
        codes = _disturb(job, watched)
        failed = [_failed(process.log) for process in watched]
        wrong = _judge(job, codes, several=any(anomaly.step for anomaly in anomalies))
        if not wrong and EXIT_DONE not in codes and job.scene.trains:
            wrong = _resume(job)
    finally:
        job.dispose()
    return Outcome(
        failed=failed,
        is_done=set(codes) - _of_lost_nodes(job) == {EXIT_DONE},
        wrong=wrong,
        said=job.said,
    )


def _failed(log: Path) -> Failed:
    calls = failed_calls(log.read_text(errors="replace")) if log.exists() else []
    of_threads = Counter[int]()
    possible = []
    for failed in calls:
        if failed.is_possible:
            possible.append(of_threads[failed.thread])
        of_threads[failed.thread] += 1
    return Failed(max(of_threads.values(), default=0), possible, len(possible) == len(calls))


def count_calls(process: str, home: Path) -> Counter[tuple[int, str]]:
    """Run a job undisturbed; return how often each thread (0: the main one) makes each call that can be made to fail.

    Raises:
        CannotBegin: the job does not end as it should.
    """
    calls = ",".join(f"?{call}" for call in ERRORS)
    watched = _Watched(
        scene=SCENES[process],
        thread=None,
        log=home / "strace",
        options=["-e", f"trace={calls}"],
    )
    job = Job(SCENES[process], home)
    try:
        codes = _disturb(job, [watched])
        if wrong := _judge(job, codes, several=False):
            raise CannotBegin(f"a job with an undisturbed {process} ends wrongly: {wrong}\n{job.said}")
    finally:
        job.dispose()
    found: Counter[tuple[int, str]] = Counter()
    for thread, call in re.findall(r"^(?:(\d+) +)?(\w+)\(", watched.log.read_text(errors="replace"), re.MULTILINE):
        is_known = thread and int(thread) in watched.threads
        number = watched.threads.index(int(thread)) if is_known else 0
        found[number, call] += 1
    return found


class _Watched:
    """A process of a job to which strace is attached."""

    def __init__(self, scene: Scene, thread: int | None, log: Path, options: Sequence[str]) -> None:
        """Prepare to watch a process.

        Args:
            scene: the kind of job, which finds the process.
            thread: the number of the thread to watch, or None for all threads.
            log: the file for strace's output.
            options: options of strace.
        """
        self._scene = scene
        self._thread = thread
        self.log = log
        self._options = options
        self._strace: subprocess.Popen[bytes] | None = None
        self.threads: list[int] = []
        """the threads that the process had when strace was attached, the main one first"""

    def attach(self, job: Job) -> None:
        """Attach strace once the process exists. Raises CannotBegin."""
        victim = wait_for(lambda: self._scene.victim(job) if job.is_running else None, START_SECONDS)
        if victim is None:
            raise CannotBegin(f"the job has not begun: {job.said}")
        try:
            threads = self.threads = _threads(victim)
        except FileNotFoundError:
            raise CannotBegin("the process has ended before strace was attached") from None
        traced = threads if self._thread is None else threads[self._thread : self._thread + 1]
        attach = ["-f", "-p", str(victim)] if self._scene.new_threads else [f"--attach={tid}" for tid in traced]
        command = ["strace", "-qq", "-y", "-o", str(self.log), *self._options, *attach]
        strace = self._strace = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if not wait_for(lambda: all(_tracer(victim, tid) == strace.pid for tid in traced), 10.0):
            raise CannotBegin("strace cannot attach")

    def detach(self) -> None:
        """End strace, if it runs."""
        if self._strace is not None:
            self._strace.kill()
            self._strace.wait()


def _disturb(job: Job, watched: Sequence[_Watched]) -> list[int | None]:
    """Attach strace once the ranks run, let the ranks begin, and wait for the end; return the exit codes."""
    job.start()
    try:
        for process in watched:
            process.attach(job)
        job.begin()
        return job.wait(_DEADLINE)
    finally:
        for process in watched:
            process.detach()


def _threads(pid: int) -> list[int]:
    return sorted(int(entry.name) for entry in os.scandir(f"/proc/{pid}/task"))


def _tracer(pid: int, thread: int) -> int:
    try:
        status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^TracerPid:\s+(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def _judge(job: Job, codes: Sequence[int | None], *, several: bool) -> str:
    """Return what must not happen, or an empty string.

    That is a hang, exit code 70, a traceback, an end without a word, another result, a process or memory left behind.

    Args:
        job: the job, which has ended or been given up waiting for.
        codes: the exit codes; None for a process that has not ended.
        several: whether so many calls may have failed that no restart was left before a rank was killed.
    """
    if None in codes:
        return f"the job has not ended within {_DEADLINE:g} s"
    lost = _of_lost_nodes(job)
    ends = set(codes) - lost
    if EXIT_BUG in ends:
        return "exit code 70"
    if unknown := ends - {EXIT_DONE, EXIT_GIVEN_UP, EXIT_SAVED, EXIT_USAGE}:
        return f"exit codes {sorted(map(str, unknown))}"
    output = job.said
    if "Traceback" in output:
        return "a traceback on the terminal"
    if not (job.home / "killed").exists() and (EXIT_DONE in ends or not several):
        return "no rank was killed: nothing is shown"
    if EXIT_DONE in ends and (wrong := _judge_results(job)):
        return wrong
    if EXIT_DONE not in ends and not any(word in output for word in _EXPLANATIONS):
        return "given up without a word"
    if not wait_for(lambda: not job.carriers(), 12.0):
        return f"processes are left: {job.carriers()}"
    events = job.events()
    can_journal = "going on without a journal" not in output
    if can_journal and events and events[-1]["event"] not in _LAST_EVENTS:
        return f"the journal ends with {events[-1]['event']}"
    is_reported = "memory" in output or "cannot remove" in output
    if ends == {EXIT_DONE} and len(job.memories()) > len(lost) and not is_reported:
        return f"memory is left, and nothing is said of it: {job.memories()}"
    return ""


def _of_lost_nodes(job: Job) -> set[int | None]:
    """Return the exit codes of agents that the job itself kills."""
    return {-9} if job.scene.how == "node" else set()


def _judge_results(job: Job) -> str:
    for rank in range(2):
        result = job.home / f"done_{rank}"
        if not result.exists():
            return "done, and a rank is not"
        if job.scene.trains and result.read_text() != training.trained(rank):
            return f"done, and the state of rank {rank} is another one"
    return ""


def _resume(job: Job) -> str:
    """Run a job that was given up once more, undisturbed.

    Returns:
        What is wrong, such as lost steps, or an empty string.
    """
    job.started.clear()
    job.start()
    codes = job.wait(_DEADLINE)
    if set(codes) != {EXIT_DONE}:
        return f"given up, and the same command ends with {codes}"
    made = [event["step"] for event in job.events() if event["event"] == "resumed"]
    has_spare = job.scene.agents > 2  # another node may now have the place of a node with steps in memory
    if wrong := _judge_results(job):
        return wrong
    return "given up, and its steps are lost" if made[-1] == 0 and not has_spare else ""
