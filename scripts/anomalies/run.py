"""One job with one failing system call, and what is said of its end."""

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
"""seconds that a job may take which lasts two to five"""
_EXPLANATIONS = ("cannot", "why:", "the same command goes on")
_LAST_EVENTS = ("job_finished", "job_failed", "job_stopped", "notified")


class CannotBegin(Exception):
    """No call could be made to fail; the message says why."""


@dataclass(frozen=True)
class Anomaly:
    """One failing call, or several of one kind.

    process: one of SCENES. thread: 0 is the main thread. number: of the call, counted from when the ranks run; 1 is
    the first. step: each step-th call after that one fails, too; 0: that one alone. last: no call after this one fails.
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
        """Of strace."""
        when = f"{self.number}..{self.last}+{self.step}" if self.step else str(self.number)
        return ["-e", f"trace={self.call}", "-e", f"inject={self.call}:error={self.error}:when={when}"]


@dataclass(frozen=True)
class Failed:
    """How many calls of one anomaly have failed.

    calls: of the thread that made most of them. possible: those of all threads that Linux could have made fail so, each
    as how many of its thread had failed before. are_possible: whether all of them are.
    """

    calls: int
    possible: Sequence[int]
    are_possible: bool


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    failed: of each anomaly. is_done: no process gave the job up. wrong: what must not be; empty where all is as it
    should.
    """

    failed: Sequence[Failed]
    is_done: bool
    wrong: str
    said: str

    @property
    def are_possible(self) -> bool:
        """Whether Linux could have made all those calls fail so."""
        return all(failed.are_possible for failed in self.failed)


def run(anomalies: Sequence[Anomaly], home: Path) -> Outcome:
    """Run a job in which a rank or a node is killed once, while calls of our processes fail.

    Args:
        anomalies: of one job, and each of another process of it.
        home: an empty directory.

    Raises CannotBegin.
    """
    job = Job(SCENES[anomalies[0].process], home)
    watched = [
        _Watched(SCENES[one.process], one.thread, home / f"strace_{number}", one.options)
        for number, one in enumerate(anomalies)
    ]
    try:
        codes = _disturb(job, watched)
        failed = [_failed(one.log) for one in watched]
        wrong = _judge(job, codes, several=any(one.step for one in anomalies))
        if not wrong and EXIT_DONE not in codes and job.scene.trains:
            wrong = _resume(job)
    finally:
        job.dispose()
    return Outcome(failed, set(codes) - _of_lost_nodes(job) == {EXIT_DONE}, wrong, job.said)


def _failed(log: Path) -> Failed:
    calls = failed_calls(log.read_text(errors="replace")) if log.exists() else []
    of_threads = Counter[int]()
    possible = []
    for one in calls:
        if one.is_possible:
            possible.append(of_threads[one.thread])
        of_threads[one.thread] += 1
    return Failed(max(of_threads.values(), default=0), possible, len(possible) == len(calls))


def count_calls(process: str, home: Path) -> Counter[tuple[int, str]]:
    """Run a job undisturbed; return how often each thread (0: the main one) makes each call that can be made to fail.

    Raises CannotBegin where the job does not end as it should.
    """
    calls = ",".join(f"?{call}" for call in ERRORS)
    watched = _Watched(SCENES[process], None, home / "strace", ["-e", f"trace={calls}"])
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
        """thread: None is all threads. options: of strace."""
        self._scene, self._thread, self.log, self._options = scene, thread, log, options
        self._strace: subprocess.Popen[bytes] | None = None
        self.threads: list[int] = []
        """that the process had when strace was attached, the main one first"""

    def attach(self, job: Job) -> None:
        """Attach strace once the process is there. Raises CannotBegin."""
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
        """End strace, where it runs."""
        if self._strace is not None:
            self._strace.kill()
            self._strace.wait()


def _disturb(job: Job, watched: Sequence[_Watched]) -> list[int | None]:
    """Attach strace once the ranks run, let them begin, and wait for the end; returns the exit codes."""
    job.start()
    try:
        for one in watched:
            one.attach(job)
        job.begin()
        return job.wait(_DEADLINE)
    finally:
        for one in watched:
            one.detach()


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
    """What must not be: a hang, a bug of ours, an end without a word, another result, a process or memory left.

    several: so many calls may fail that no restart is left before a rank is killed.
    """
    if None in codes:
        return f"the job has not ended within {_DEADLINE:g} s"
    lost = _of_lost_nodes(job)
    ends = set(codes) - lost
    if EXIT_BUG in ends:
        return "exit code 70"
    if unknown := ends - {EXIT_DONE, EXIT_GIVEN_UP, EXIT_SAVED, EXIT_USAGE}:
        return f"exit codes {sorted(map(str, unknown))}"
    said = job.said
    if "Traceback" in said:
        return "a traceback on the terminal"
    if not (job.home / "killed").exists() and (EXIT_DONE in ends or not several):
        return "no rank was killed: nothing is shown"
    if EXIT_DONE in ends and (wrong := _judge_results(job)):
        return wrong
    if EXIT_DONE not in ends and not any(word in said for word in _EXPLANATIONS):
        return "given up without a word"
    if not wait_for(lambda: not job.carriers(), 12.0):
        return f"processes are left: {job.carriers()}"
    events = job.events()
    can_journal = "going on without a journal" not in said
    if can_journal and events and events[-1]["event"] not in _LAST_EVENTS:
        return f"the journal ends with {events[-1]['event']}"
    is_told = "memory" in said or "cannot remove" in said
    if ends == {EXIT_DONE} and len(job.memories()) > len(lost) and not is_told:
        return f"memory is left, and nothing is said of it: {job.memories()}"
    return ""


def _of_lost_nodes(job: Job) -> set[int | None]:
    """The exit codes of agents that the job itself kills."""
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
    """Run a job that was given up once more, undisturbed: what it had must be there still."""
    job.started.clear()
    job.start()
    codes = job.wait(_DEADLINE)
    if set(codes) != {EXIT_DONE}:
        return f"given up, and the same command ends with {codes}"
    made = [event["step"] for event in job.events() if event["event"] == "resumed"]
    has_spare = job.scene.agents > 2  # another node may take the place now of one that has steps in memory
    return _judge_results(job) or ("given up, and its steps are lost" if made[-1] == 0 and not has_spare else "")
