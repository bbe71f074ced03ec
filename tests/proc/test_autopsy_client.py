"""An autopsy of processes that are not ranks of ours: it finds what there is, says what is missing, and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import wait_for

from ftlaunch.autopsy import client
from ftlaunch.autopsy.client import KEPT, Autopsy, collect_here
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.helper_process import HelperProcesses


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def subject(pid: int, log: Path) -> dict[str, Any]:
    return {"rank": 0, "pid": pid, "log": str(log), "why": "a test", "stacks": False}


def made(run_dir: Path, attempt: int, *subjects: dict[str, Any]) -> Autopsy:
    helpers = HelperProcesses()
    autopsy = Autopsy(collect_here(helpers, run_dir), run_dir, FileThread(run_dir), f"attempt_{attempt}", subjects)
    wait_for(autopsy.over, "the end of the autopsy")
    assert autopsy.error == ""
    assert helpers.pids == []
    return autopsy


def test_a_program_without_hooks(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    autopsy = made(tmp_path, 0, subject(sleeper.pid, tmp_path / "log"))
    found = autopsy.dumps()[0]
    assert (found.state, found.main, found.waiting, found.flight) == ("S", None, None, None)
    assert "nanosleep" in found.system_call + found.channel
    missing = json.loads((autopsy.directory / "rank_0.proc.json").read_text())["missing"]
    assert missing["stack"] == "the hooks are not in the process"
    assert missing["flight"] == "no witness: No such file or directory"


def test_a_process_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    """The rank has ended, its number is another's."""
    autopsy = made(tmp_path, 0, subject(os.getppid(), tmp_path / "log"))
    assert list(autopsy.directory.iterdir()) == []
    assert autopsy.dumps()[0].state == ""


def test_a_stopped_process_is_seen_to_be(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    state = Path(f"/proc/{sleeper.pid}/stat")
    wait_for(lambda: state.read_text().split()[2] == "T", "the stop")
    assert made(tmp_path, 0, subject(sleeper.pid, tmp_path / "log")).dumps()[0].stopped


def test_children_that_do_not_show_stacks_are_not_signalled(tmp_path: Path) -> None:
    """The signal would end a program that has no handler for it."""
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            found = made(tmp_path, 0, subject(parent.pid, tmp_path / "log")).dumps()[0]
            assert [(c.pid, c.name, c.stack) for c in found.children] == [(child, "sleep", "")]
            assert parent.poll() is None
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_newest_are_kept_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    for attempt in range(KEPT + 2):
        autopsy = made(tmp_path, attempt)
        autopsy.conclude("it sleeps")
    (autopsy.directory.parent / "notes").touch()
    left = sorted(path.name for path in autopsy.directory.parent.glob("attempt_*"))
    assert left == sorted(f"attempt_{number}" for number in range(2, KEPT + 2))
    assert made(tmp_path, KEPT + 1).directory == autopsy.directory, "of an earlier run of the job"
    assert not (autopsy.directory / "verdict.txt").exists()


def test_a_file_that_somebody_has_damaged_is_said_to_be(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    autopsy = made(tmp_path, 0, subject(sleeper.pid, tmp_path / "log"))
    (autopsy.directory / "rank_0.proc.json").write_text('{"threads": ["x"]}')
    assert autopsy.dumps()[0].state == ""
    assert autopsy.error == (
        f"cannot read the autopsy of rank 0 in {autopsy.directory}: `threads` is not a list of objects"
    )


def test_where_it_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "autopsy").touch()
    autopsy = Autopsy(
        collect_here(HelperProcesses(), tmp_path),
        tmp_path,
        FileThread(tmp_path),
        "attempt_0",
        [subject(os.getpid(), tmp_path / "log")],
    )
    assert autopsy.over()
    assert autopsy.error == "cannot make an autopsy: File exists"
    assert autopsy.dumps()[0].stack == ""


def test_it_does_not_wait_for_ever(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "AUTOPSY_SECONDS", 0.0)
    helpers = HelperProcesses()
    autopsy = Autopsy(
        collect_here(helpers, tmp_path),
        tmp_path,
        FileThread(tmp_path),
        "attempt_0",
        [subject(sleeper.pid, tmp_path / "log")],
    )
    assert autopsy.over()
    assert autopsy.error == "the autopsy was not over within 0 s"
    wait_for(lambda: not helpers.pids, "its end")
