"""Files are touched in a thread: in order, and without holding up whoever asks where a file system stands still."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.files import FilesAnswer, FilesSilent
from ftlaunch.reporting.file_silence import FileSilence
from ftlaunch.system import file_thread
from ftlaunch.system.file_thread import PATIENCE_SECONDS, FileSystemSilent, FileThread, FileThreads

NEVER = 60.0


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileThread]:
    thread = FileThread(tmp_path)
    yield thread
    assert thread.flush(NEVER)
    thread.close()


@pytest.fixture
def gate(files: FileThread) -> Iterator[threading.Event]:
    """A call that does not come back before it is set: what a file system does that stands still."""
    gate, begun = threading.Event(), threading.Event()

    def stand_still() -> None:
        begun.set()
        gate.wait()

    files.write(stand_still, pytest.fail)
    assert begun.wait(NEVER)
    yield gate
    gate.set()


def test_writes_are_made_in_order_and_a_call_sees_those_before_it(files: FileThread) -> None:
    made: list[int] = []
    for number in range(100):
        files.write(lambda number=number: made.append(number), pytest.fail)  # type: ignore[misc]
    assert files.call(lambda: list(made)) == list(range(100))


def test_nobody_waits_for_what_stands_still(files: FileThread, gate: threading.Event) -> None:
    began = time.monotonic()
    with pytest.raises(FileSystemSilent) as first:
        files.call(lambda: pytest.fail("it was given up"))
    assert time.monotonic() - began >= PATIENCE_SECONDS
    with pytest.raises(FileSystemSilent, match=r"its file system has not answered for 0\.[5-9] s"):
        files.call(lambda: pytest.fail("it is not even asked"))
    assert first.value.filename == str(files.where)
    assert not files.flush(0.0)
    gate.set()
    assert files.flush(NEVER)
    assert files.call(lambda: 1) == 1


def test_of_a_file_that_is_written_as_a_whole_the_newest_is(files: FileThread, gate: threading.Event) -> None:
    made: list[str] = []
    files.write(lambda: made.append("plan 1"), pytest.fail, replaces="plan")
    files.write(lambda: made.append("line"), pytest.fail)
    files.write(lambda: made.append("plan 2"), pytest.fail, replaces="plan")
    assert files.waiting == 3, "the one that stands still, the plan, the line"
    gate.set()
    assert files.flush(NEVER)
    assert made == ["plan 2", "line"]


def test_what_waits_has_a_limit(files: FileThread, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_thread, "MOST_BYTES", 100)
    made: list[int] = []
    taken = [files.write(lambda n=n: made.append(n), pytest.fail, size=40) for n in range(3)]  # type: ignore[misc]
    assert (taken, files.refused) == ([True, True, False], 1)
    gate.set()
    assert files.flush(NEVER)
    assert made == [0, 1]
    assert files.write(lambda: made.append(3), pytest.fail, size=100)


def test_errors_are_told_to_who_asked_and_in_their_thread(files: FileThread) -> None:
    told: list[OSError] = []
    files.write((files.where / "no" / "file").touch, told.append)
    assert files.flush(NEVER)
    assert told == []
    files.report_failures()
    assert [error.strerror for error in told] == ["No such file or directory"]
    with pytest.raises(FileNotFoundError):
        files.call((files.where / "nothing").read_text)
    files.write(lambda: 1 // 0, pytest.fail)
    assert files.flush(NEVER)
    with pytest.raises(ZeroDivisionError):
        files.report_failures()


def test_a_descriptor_that_comes_too_late_is_closed(files: FileThread, tmp_path: Path) -> None:
    gate, closed = threading.Event(), list[int]()

    def open_late() -> int:
        gate.wait()
        return os.open(tmp_path, os.O_RDONLY)

    def close(descriptor: int) -> None:
        os.close(descriptor)
        closed.append(descriptor)

    with pytest.raises(FileSystemSilent):
        files.call(open_late, give_back=close)
    gate.set()
    wait_for(lambda: closed, "the descriptor to be closed")


def test_whoever_waits_longer_can_do_something_meanwhile(files: FileThread, gate: threading.Event) -> None:
    """Taken out (`while_waiting`): an agent's node counts as lost while it waits for its logs."""
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            gate.set()

    assert files.call(lambda: "there", patience=NEVER, while_waiting=beat) == "there"
    assert len(beats) == 3


def test_places_of_one_file_system_share_a_thread(tmp_path: Path) -> None:
    threads = FileThreads([tmp_path, tmp_path / "not" / "there", Path("/proc")])
    assert len(threads.threads) == 2
    assert threads.of(tmp_path) is threads.of(tmp_path / "not" / "there")
    assert threads.flush(NEVER)
    threads.close()


def test_silence_is_told_and_its_end(tmp_path: Path) -> None:
    threads, told = FileThreads([tmp_path]), list[JobEvent]()
    gate = threading.Event()
    silence = FileSilence(threads, told.append)

    def heard(kind: type[JobEvent]) -> bool:
        silence.poll()
        return any(isinstance(event, kind) for event in told)

    threads.of(tmp_path).write(gate.wait, pytest.fail)
    wait_for(lambda: heard(FilesSilent), "the silence")
    gate.set()
    wait_for(lambda: heard(FilesAnswer), "its end")
    assert [type(event) for event in told] == [FilesSilent, FilesAnswer]
    assert "answers again, after 2" in told[1].sentence()
    threads.close()


def test_lines_that_had_no_room_are_told_of_also_where_nothing_was_silent_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out: a slow disk loses events, and nobody says so."""
    monkeypatch.setattr(file_thread, "MOST_BYTES", 10)
    threads, told, gate = FileThreads([tmp_path]), list[JobEvent](), threading.Event()
    thread = threads.of(tmp_path)
    silence = FileSilence(threads, told.append)
    thread.write(gate.wait, pytest.fail, size=10)
    wait_for(lambda: thread.silent_seconds > 0, "the slow write to begin")
    assert not thread.write(gate.wait, pytest.fail, size=10)
    silence.poll()
    gate.set()
    assert thread.flush(NEVER)
    silence.poll()
    (answer,) = told
    assert isinstance(answer, FilesAnswer)
    assert answer.lost == 1
    assert "1 event was too much to wait in memory, and is missing in the journal" in answer.sentence()
    silence.poll()
    assert told == [answer], "it is said once"
    threads.close()
