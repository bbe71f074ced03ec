"""events.jsonl after crashes, and the lock that outlives neither its holder nor its name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from ftlaunch.history import journal as journal_module
from ftlaunch.history.journal import EVENTS, Journal, read_events
from ftlaunch_contract.files.dirlock import DirLock, Locked
from ftlaunch_contract.protocol import process_start_time

Holder = Callable[..., subprocess.Popen[str]]

HOLD = """\
import os, subprocess, sys, time
from pathlib import Path
from ftlaunch_contract.files.dirlock import DirLock
lock = DirLock(Path(sys.argv[1]))
if "child" in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=(lock.fd,))
    print(child.pid, flush=True)
else:
    print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Holder]:
    """Starts a process that holds the lock of tmp_path until its stdin ends."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# --- the journal ------------------------------------------------------------------------------------------


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("job_started", ranks=2, name='ü "x"\n\u2028y')
    journal.attempt = 3
    journal.write("incident", step=None)
    journal.close()
    first, second = read_events(tmp_path)
    assert (first["event"], first["attempt"], first["name"]) == ("job_started", 0, 'ü "x"\n\u2028y')
    assert (second["attempt"], second["step"]) == (3, None)
    assert 0 <= second["mono"] - first["mono"] < 60
    assert len((tmp_path / EVENTS).read_bytes().splitlines()) == 2


@pytest.mark.parametrize("torn", [b'{"event": "a', b"{", b'{"event": "a"}', b"\xff\xfe\x00", b"\xc3"])
def test_what_a_crash_has_torn_costs_that_line_only(torn: bytes, tmp_path: Path) -> None:
    whole = b'{"event": "first"}\n'
    (tmp_path / EVENTS).write_bytes(whole + torn)
    journal = Journal(tmp_path)
    journal.write("next")
    journal.close()
    names = [event["event"] for event in read_events(tmp_path)]
    assert names == (["first", "a", "next"] if torn.endswith(b"}") else ["first", "next"])
    Journal(tmp_path).close()  # mended already: nothing is added
    assert (tmp_path / EVENTS).read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("line", [b"", b"null", b"[]", b"17", b'{"t": 1}', b"\0" * 4096])
def test_lines_that_are_no_events_are_passed_over(line: bytes, tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_bytes(line + b'\n{"event": "a"}\n')
    assert read_events(tmp_path) == [{"event": "a"}]


def test_two_writers_never_mix_their_lines(tmp_path: Path) -> None:
    first, second = Journal(tmp_path), Journal(tmp_path)
    for number in range(100):
        (first, second)[number % 2].write("x" * number, number=number)
    assert [event["number"] for event in read_events(tmp_path)] == list(range(100))


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_events(tmp_path)


# --- the lock ---------------------------------------------------------------------------------------------


def test_a_living_holder_refuses_everybody_at_once(hold: Holder, tmp_path: Path) -> None:
    holder = hold()
    assert said(holder) == "held"
    for wait in (None, lambda pid: pytest.fail(f"waited for {pid}")):
        with pytest.raises(Locked, match=rf"in use by a running supervisor \(pid {holder.pid}\)") as refusal:
            DirLock(tmp_path, wait)
        assert refusal.value.holder == holder.pid


def test_it_is_free_the_moment_its_holder_is_killed(hold: Holder, tmp_path: Path) -> None:
    holder = hold()
    assert said(holder) == "held"
    holder.kill()
    holder.wait()
    lock = DirLock(tmp_path, lambda pid: pytest.fail(f"waited for {pid}"))
    assert (tmp_path / "lock").read_text().split()[0] == str(os.getpid())
    lock.release()


def test_a_child_of_a_dead_holder_keeps_it_and_is_waited_for(hold: Holder, tmp_path: Path) -> None:
    holder = hold("child")
    child = int(said(holder))
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with pytest.raises(Locked, match=rf"the saver of a supervisor that is gone \(pid {holder.pid}\)"):
        DirLock(tmp_path, patience=0.0)
    waited: list[int] = []

    def wait(pid: int) -> None:
        waited.append(pid)
        os.kill(child, signal.SIGKILL)

    DirLock(tmp_path, wait).release()
    assert waited == [holder.pid]


def test_a_reused_pid_does_not_fool_it(hold: Holder, tmp_path: Path) -> None:
    holder = hold("child")
    said(holder)
    (tmp_path / "lock").write_text(f"{os.getpid()} 1\n")  # this process lives, but began at another time
    waited: list[int] = []

    def wait(pid: int) -> None:
        waited.append(pid)
        holder.communicate()  # it ends, and its child with it

    DirLock(tmp_path, wait).release()
    assert waited == [os.getpid()]


@pytest.mark.parametrize("content", ["", "17", "x y", "-1 -1", "1 2 3"])
def test_nonsense_in_the_file_is_nobodys_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(content)
    lock = DirLock(tmp_path, patience=0.0)
    assert (tmp_path / "lock").read_text().split()[:2] == [str(os.getpid()), str(process_start_time(os.getpid()))]
    lock.release()


def test_of_many_that_start_together_one_gets_it(hold: Holder) -> None:
    """The one that has just taken it may not have written its name: nobody else may take it for dead."""
    crowd = [hold() for _ in range(4)]
    wait_for(lambda: sum(process.poll() is not None for process in crowd) == 3, "three refusals")
    assert [said(process) for process in crowd if process.poll() is None] == ["held"]


def test_a_lock_whose_file_was_removed_is_taken_anew(hold: Holder, tmp_path: Path) -> None:
    holder = hold("child")
    said(holder)
    (tmp_path / "lock").write_text("1 1\n")

    def wait(_pid: int) -> None:
        (tmp_path / "lock").unlink()
        holder.communicate()

    lock = DirLock(tmp_path, wait)
    assert (tmp_path / "lock").stat().st_ino == os.fstat(lock.fd).st_ino
    with pytest.raises(Locked):
        DirLock(tmp_path)
    lock.release()


def test_a_journal_is_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without an end, of any length, is never in memory as a whole, and the next one is read."""
    monkeypatch.setattr(journal_module, "LONGEST_LINE", 1000)
    good = json.dumps({"event": "progress", "step": 1})
    (tmp_path / "events.jsonl").write_text(f"{good}\n{'x' * 5000}\n{good}\n[]\n{{\n\n{good}")
    dropped: Counter[str] = Counter()
    assert len(list(journal_module.stream_events(tmp_path, dropped))) == 3
    assert dropped == {journal_module.TOO_LONG: 1, journal_module.STRANGE: 1, journal_module.TORN: 1}
