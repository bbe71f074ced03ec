"""Every reader of a journal passes over what is damaged, and begins again where another journal takes the place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.history import journal as journal_module
from ftlaunch.history.journal import EVENTS, JournalFollower, read_events
from ftlaunch.history.rank_logs import LocalLogs
from ftlaunch.history.run_logs import NewestRun
from ftlaunch.history.runs import Run, load_newest
from ftlaunch.system.device_names import DeviceNames
from ftlaunch.views.dashboard.followed_journal import FollowedJournal
from ftlaunch.views.metrics.reading import Sources
from ftlaunch.views.report_page.gathering.walk import Walk
from ftlaunch.views.top.job_watch import JobWatch, Unanswered

Read = Callable[[], str]
"""reads what is new, and returns the time of the newest start"""


def started(second: int, **fields: Any) -> bytes:
    """The line of a start at a second, which tells the starts apart."""
    stamp = f"2031-01-02T03:04:{second:02d}.000Z"
    event = {"t": stamp, "mono": float(second), "attempt": 0, "event": "job_started", "job_id": "j", "ranks": 1,
             "pid": 1, "start_time": 0, "memory_dir": "/nothing/here", "max_restarts": 1, **fields}  # fmt: skip
    return json.dumps(event).encode() + b"\n"


def second_of(event: Any) -> str:
    return "" if event is None else str(event["t"])[17:19]


def whole(run_dir: Path) -> Read:
    return lambda: second_of(read_events(run_dir)[-1])


def newest(run_dir: Path) -> Read:
    return lambda: second_of(load_newest(run_dir).start)


def follower(run_dir: Path) -> Read:
    seen: list[dict[str, Any]] = []
    tail = JournalFollower(run_dir, on_replaced=seen.clear)

    def read() -> str:
        seen.extend(tail.events())
        return second_of(seen[-1])

    return read


def dashboard(run_dir: Path) -> Read:
    followed = FollowedJournal(run_dir, lambda hooked: Walk(hooked=hooked))

    def read() -> str:
        followed.read()
        return second_of(followed.state.ends_of_run[0])

    return read


def metrics(run_dir: Path) -> Read:
    sources = Sources(run_dir, (), DeviceNames("", "", "", "", ()))

    def read() -> str:
        start = sources.read().tally.start
        sources.close()
        return second_of(start)

    return read


def top(run_dir: Path) -> Read:
    def silent(run: Run, request: dict[str, Any]) -> dict[str, Any]:
        raise Unanswered("gone", gone=True)

    watch = JobWatch(load_newest(run_dir), silent)

    def read() -> str:
        watch.make_picture()
        return second_of(watch.run.start)

    return read


def logs(run_dir: Path) -> Read:
    run = NewestRun(run_dir, LocalLogs(run_dir / "logs"))

    def read() -> str:
        run.read_journal()
        return time.strftime("%S", time.gmtime(run.since))

    return read


readers = pytest.mark.parametrize("reader", [whole, newest, follower, dashboard, metrics, top, logs])
DAMAGE = {
    "torn": started(5)[:-9] + b"\n",
    "no JSON": b"job_started\n",
    "no object": b'["job_started"]\n17\nnull\n"job_started"\n',
    "no name": b'{"event": ["job_started"]}\n{"t": "job_started"}\n',
    "no UTF-8": b"\xff\xfe" + started(5)[:40] + b"\n\xff\n",
    "nothing": b"\n \n\0\0\0\n",
    "too deep": b'{"event": "job_started", "t": ' + b"[" * 100_000 + b"\n",
    "huge": started(5, text="x" * 20_000),
    "huge number": b'{"event": "job_started", "attempt": ' + b"9" * 5_000 + b"}\n",
}


@readers
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_line_is_passed_over(
    reader: Callable[[Path], Read], damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "LONGEST_LINE", 10_000)
    monkeypatch.setattr(journal_module, "NEWEST", 10_000)
    monkeypatch.setattr(journal_module, "FIRST", 1000)
    monkeypatch.setattr(journal_module, "BLOCK", 1000)
    path = tmp_path / EVENTS
    path.write_bytes(started(1) + DAMAGE[damage])
    read = reader(tmp_path)
    assert read() == "01"
    with path.open("ab") as file:
        file.write(DAMAGE[damage] + started(2))
    assert read() == "02"


@readers
def test_a_last_line_without_its_end_is_read_once_its_end_is_there(
    reader: Callable[[Path], Read], tmp_path: Path
) -> None:
    line = started(2)
    (tmp_path / EVENTS).write_bytes(started(1) + line[:-9])
    read = reader(tmp_path)
    assert read() == "01"
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(line[-9:])
    assert read() == "02"


@readers
@pytest.mark.parametrize("content", [started(3), started(3) + b"x" * 2000, started(3, more="x" * 2000)])
@pytest.mark.parametrize("is_renamed", [True, False])
def test_another_journal_is_read_from_its_beginning(
    reader: Callable[[Path], Read], content: bytes, is_renamed: bool, tmp_path: Path
) -> None:
    """Taken out (`_restart_if_replaced`): all that follow a journal went on telling of the old one."""
    (tmp_path / EVENTS).write_bytes(started(1) + started(2))
    read = reader(tmp_path)
    assert read() == "02"
    if is_renamed:
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").rename(tmp_path / EVENTS)
    else:
        (tmp_path / EVENTS).write_bytes(content)
    assert read() == "03"
