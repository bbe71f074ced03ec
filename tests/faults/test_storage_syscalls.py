"""A saver that is killed at, or gets an error from, every single system call of a save, one run per call."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import assert_whole, commit, make_slots, request
from tests.support.harness import JOBS
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout, retention, verify
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader

STRACE = shutil.which("strace")
pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is not installed (Debian: strace)")

OLD, NEW = 1, 2
FAULTS = {
    "killed": "signal=KILL",
    "EIO": "error=EIO",
    "ENOSPC": "error=ENOSPC",
    "EDQUOT": "error=EDQUOT",
    "EROFS": "error=EROFS",
    "EINTR": "error=EINTR",
}
# What Linux lets a signal interrupt: these are begun again. (Others never end with EINTR on a local disk.)
INTERRUPTIBLE = ("openat", "write", "pread64", "preadv2", "read", "fsync")
# Of the process itself, not of a save.
OTHERS = re.compile(
    r"futex|rt_sig.*|exit.*|get[pt]id|kill|tgkill|munmap|mprotect|brk|clone3?|set_robust_list|rseq|sched_.*"
    r"|madvise|clock_.*|restart_syscall|prctl|ppoll|mmap"  # (files are read, not mapped: mmap is the allocator's)
)


@dataclass
class Ended:
    """How a run ended: killed, or with what answer; and whether the fault fired."""

    status: int
    answer: dict[str, Any] | None
    calls: list[str]
    fired: bool


class Victim:
    """Runs saves of step 2 over a committed step 1 (or over nothing), each under strace."""

    def __init__(self, root: Path, first_ever: bool = False) -> None:
        self.root, self.checkpoints, self.model = root, root / "checkpoints", root / "model"
        self.model.mkdir()
        if not first_ever:
            commit(root, OLD)
            self.model.rmdir()
            self.checkpoints.rename(self.model)
        (root / "request").write_text(json.dumps(request(root, NEW, make_slots(root, NEW))))
        self.server = subprocess.Popen(
            [sys.executable, JOBS / "saves.py", root / "request"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        self.server.communicate()

    def _said(self) -> Any:
        assert self.server.stdout is not None
        return json.loads(self.server.stdout.readline())

    def run(self, *options: str) -> Ended:
        """One save, from the state that the first one found."""
        if self.checkpoints.exists():
            shutil.rmtree(self.checkpoints)
        shutil.copytree(self.model, self.checkpoints)
        assert self.server.stdin is not None
        self.server.stdin.write("\n")
        self.server.stdin.flush()
        pid, log = self._said(), self.root / "strace"
        status = Path(f"/proc/{pid}/status")
        wait_for(lambda: "State:\tT" in status.read_text(), "the victim to stop")
        tracer = subprocess.Popen([str(STRACE), "-f", "-qq", "-o", str(log), "-p", str(pid), *options])
        wait_for(lambda: "TracerPid:\t0\n" not in status.read_text(), "strace to attach")
        subprocess.run(["kill", "-CONT", str(pid)], check=True)
        code, answer = self._said(), self._said()
        tracer.wait(60)
        text = log.read_text()
        calls = re.findall(r"^\d+ +(\w+)\(", text, re.MULTILINE)
        fired = "(INJECTED)" in text or code == -9
        return Ended(code, answer, calls, fired)

    def disturb(self, call: str, fault: str, number: int) -> Ended:
        """The `number`-th call of this name in the save fails."""
        return self.run("-e", f"trace={call}", "-e", f"inject={call}:{FAULTS[fault]}:when={number}")

    def judge(self, ended: Ended, harmless: bool = False) -> None:
        """What is on storage afterwards must be whole, old or new, and be what the next start resumes from."""
        found = layout.list_iterations(self.checkpoints)
        for _, directory in found:
            assert_whole(directory)
        newest = found[0][0] if found else None
        before = OLD if layout.list_iterations(self.model) else None
        answer = ended.answer
        assert newest in (before, NEW)
        if harmless:
            assert answer is not None
            assert "error" not in answer, answer
        if answer is not None and "error" not in answer:
            assert newest == NEW
        left = layout.list_incomplete(self.checkpoints)
        if answer is not None and left:  # only what could not be removed, and that is said
            assert "could not be removed" in answer.get("error", "") or "cannot delete" in str(answer.get("notes"))
        if before is not None:
            assert int((self.checkpoints / layout.TRACKER).read_text()) in (OLD, NEW)
        self._resume(newest)

    def _resume(self, newest: int | None) -> None:
        retention.clear_unfinished(self.checkpoints)
        assert layout.list_incomplete(self.checkpoints) == []
        step, refusals = verify.newest_verified(self.checkpoints)
        assert (step, refusals) == (-1 if newest is None else newest, [])
        if newest is None:
            assert not layout.refused_before(self.checkpoints), "the next start is a fresh one"
            return
        reader = CheckpointReader(layout.iteration_dir(self.checkpoints, newest))
        assert reader.state(1) == {"at": newest}
        [piece] = reader.pieces("opt1")
        assert bytes(piece.tensor().tolist()).startswith(f"opt 1 {newest};".encode())

    def sweep(self, call: str, fault: str) -> int:
        """Disturb one call after the other until a run goes through untouched; how many were disturbed."""
        number = 1
        while (ended := self.disturb(call, fault, number)).fired:
            self.judge(ended, harmless=fault == "EINTR" and call in INTERRUPTIBLE)
            number += 1
        assert ended.answer is not None
        assert "error" not in ended.answer
        self.judge(ended)
        return number - 1


@pytest.fixture
def victim(memory: Path) -> Iterator[Victim]:
    victim = Victim(memory)
    yield victim
    victim.close()


def calls_of(victim: Victim) -> list[str]:
    """Names of the system calls of an undisturbed save."""
    ended = victim.run()
    assert ended.answer is not None
    assert ended.answer["deleted"] == [OLD]
    return sorted({call for call in ended.calls if not OTHERS.fullmatch(call)})


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "fault", "least"),
    [
        ("rename", "killed", 3),
        ("fsync", "killed", 10),
        ("unlink", "killed", 6),
        ("mkdir", "killed", 1),
        ("write", "ENOSPC", 8),
        ("fsync", "EIO", 10),
        ("rename", "EIO", 3),
        ("write", "EINTR", 8),
    ],
)
def test_a_save_disturbed_at_each_call(victim: Victim, call: str, fault: str, least: int) -> None:
    assert victim.sweep(call, fault) >= least


def test_a_first_save_killed_at_each_step_leaves_a_fresh_start(memory: Path) -> None:
    victim = Victim(memory, first_ever=True)
    try:
        assert victim.sweep("rename", "killed") >= 2
        assert victim.sweep("mkdir", "killed") >= 1
    finally:
        victim.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_disturbed_at_every_system_call(victim: Victim, fault: str) -> None:
    calls = calls_of(victim)
    assert {"openat", "write", "fsync", "rename", "unlink", "mkdir", "rmdir"} <= set(calls)
    disturbed = {call: victim.sweep(call, fault) for call in calls}
    print(fault, disturbed, sum(disturbed.values()))
    assert sum(disturbed.values()) > 100
