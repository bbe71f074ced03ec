"""One job with one failing system call, and what is said of its end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ftlaunch_contract.protocol import EXIT_BUG, EXIT_DONE, EXIT_GIVEN_UP, memory_root

_DEADLINE = 60.0
"""seconds that a job may take which lasts two"""
_VICTIM = Path(__file__).with_name("victim.py")


@dataclass(frozen=True)
class Anomaly:
    """One failing call.

    process: supervisor or fork server. number: of the call, counted from when the ranks run; 1 is the first.
    """

    process: str
    call: str
    error: str
    number: int

    def __str__(self) -> str:
        return f"{self.process}: {self.call} {self.error} #{self.number}"


@dataclass(frozen=True)
class Outcome:
    """What became of the job.

    fired: whether the call was made, and failed. wrong: what must not be; empty where all is as it should.
    """

    fired: bool
    code: int | None
    wrong: str
    said: str


def run(anomaly: Anomaly, home: Path, script: Path = _VICTIM) -> Outcome:
    """Run a job of two ranks, of which one is killed, while a call of one of our processes fails.

    Args:
        anomaly: the failing call.
        home: an empty directory; removed where nothing is wrong.
        script: what the ranks run; is given `home`, and begins once there is a file `begin` in it.
    """
    tag, job_id = f"FT_ANOMALY={uuid.uuid4().hex}", f"anomaly-{uuid.uuid4().hex[:8]}"
    name, _, value = tag.partition("=")
    log, stderr = home / "strace", home / "stderr"
    words = ("--nproc-per-node", "2", "--run-dir", str(home / "run"), "--job-id", job_id, "--backoff-first", "0.05s")
    with stderr.open("w") as err:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "ftlaunch", *words, *_options(anomaly), str(script), str(home)],
            env={**os.environ, name: value},
            cwd=home,
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
    try:
        code, fired = _disturb(supervisor, anomaly, home, log)
        wrong = _judge(code, home, tag, job_id)
    finally:
        for pid in _carriers(tag):
            os.kill(pid, signal.SIGKILL)
        supervisor.wait()
        shutil.rmtree(memory_root(os.getuid()) / job_id, ignore_errors=True)
        for left in memory_root(os.getuid()).glob(f"{job_id}-*"):
            shutil.rmtree(left, ignore_errors=True)
    return Outcome(fired, code, wrong, stderr.read_text(errors="replace"))


def _options(anomaly: Anomaly) -> tuple[str, ...]:
    return ("--warm",) if anomaly.process == "fork server" else ("--no-warm",)


def _disturb(supervisor: subprocess.Popen[bytes], anomaly: Anomaly, home: Path, log: Path) -> tuple[int | None, bool]:
    """Attach strace once the ranks run, let them begin, and wait for the end; return the code, and whether it fired."""
    journal = home / "run" / "events.jsonl"
    if not _wait(lambda: journal.exists() and '"attempt_started"' in journal.read_text(), 30.0):
        return supervisor.poll(), False
    victim = _victim(supervisor.pid, anomaly.process)
    inject = f"inject={anomaly.call}:error={anomaly.error}:when={anomaly.number}"
    strace = subprocess.Popen(
        ["strace", "-qq", "-o", str(log), "-e", f"trace={anomaly.call}", "-e", inject, "-p", str(victim)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        if not _wait(lambda: _tracer(victim) == strace.pid, 10.0):
            raise RuntimeError("strace cannot attach")
        (home / "begin").touch()
        try:
            code: int | None = supervisor.wait(_DEADLINE)
        except subprocess.TimeoutExpired:
            code = None
    finally:
        strace.kill()
        strace.wait()
    return code, log.exists() and "(INJECTED)" in log.read_text(errors="replace")


def _victim(supervisor: int, process: str) -> int:
    if process == "supervisor":
        return supervisor
    children = psutil.Process(supervisor).children()
    found = [one.pid for one in children if any("fork_server.py" in part for part in one.cmdline())]
    return found[0]


def _tracer(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^TracerPid:\s+(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def _wait(ready: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _judge(code: int | None, home: Path, tag: str, job_id: str) -> str:
    """What must not be: a hang, a bug of ours, an end without a word, a process or memory that is left."""
    if code is None:
        return f"the job has not ended within {_DEADLINE:g} s"
    if code == EXIT_BUG:
        return "exit code 70"
    if code not in (EXIT_DONE, EXIT_GIVEN_UP):
        return f"exit code {code}"
    said = (home / "stderr").read_text(errors="replace")
    if "Traceback" in said:
        return "a traceback on the terminal"
    if not (home / "killed").exists():
        return "no rank was killed: nothing is shown"
    if code == EXIT_DONE and not all((home / f"done_{rank}").exists() for rank in range(2)):
        return "done, and a rank is not"
    if code == EXIT_GIVEN_UP and "cannot" not in said and "why:" not in said:
        return "given up without a word"
    if not _wait(lambda: not _carriers(tag), 5.0):
        return f"processes are left: {_carriers(tag)}"
    events = _events(home / "run")
    can_journal = "going on without a journal" not in said
    if can_journal and events and events[-1]["event"] not in ("job_finished", "job_failed", "notified"):
        return f"the journal ends with {events[-1]['event']}"
    if code == EXIT_DONE and list(memory_root(os.getuid()).glob(f"{job_id}*")) and "memory" not in said:
        return "memory is left, and nothing is said of it"
    return ""


def _events(run_dir: Path) -> list[dict[str, Any]]:
    found = []
    for line in (run_dir / "events.jsonl").read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _carriers(tag: str) -> list[int]:
    """The processes that were started with the tag in their environment."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = Path(entry.path, "environ").read_bytes()
            except OSError:
                continue
            if tag.encode() in environment.split(b"\0"):
                found.append(int(entry.name))
    return found
