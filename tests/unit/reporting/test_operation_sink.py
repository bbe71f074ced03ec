"""The file that a script names for its saves and deletions, as the supervisor and a process without one write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftlaunch.policy.states import JobState
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import (
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointMoved,
    CheckpointRejected,
    CheckpointUnfinished,
)
from ftlaunch.reporting.events.job import JobEnded
from ftlaunch.reporting.sinks import OperationSink
from ftlaunch_contract.checkpoint import operation_log
from ftlaunch_hooks.process import operations

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
SAVED = CheckpointCommitted(
    {
        "step": 5,
        "why": "interval",
        "bytes": 64,
        "seconds": 0.1,
        "health": {"status": "normal", "why": ""},
        "path": "/ck/iteration_0000005",
    }
)
OTHERS: list[JobEvent] = [
    CheckpointUnfinished(3, Path("/ck/iteration_0000003.incomplete")),
    CheckpointMoved(9, Path("/ck/iteration_0000009"), Path("/ck/superseded-1/iteration_0000009"), "--fresh"),
    CheckpointRejected({"step": 7, "why": "it is torn", "to": "/ck/quarantine/iteration_0000007"}, 5),
    CheckpointDeleted(2, Path("/ck/iteration_0000002"), "retention", 1),
]


class Writes:
    """A FileThread that writes at once."""

    def write(
        self, function: Callable[[], object], failed: Callable[[OSError], None], *, size: int = 0,
        replaces: str | None = None,
    ) -> bool:  # fmt: skip
        try:
            function()
        except OSError as error:
            failed(error)
        return True


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def sink(tmp_path: Path, complaints: list[str]) -> OperationSink:
    spec = cast(Any, SimpleNamespace(run_dir=tmp_path))
    return OperationSink(spec, cast(Any, Writes()), complaints.append)


def read(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    assert all(STAMP.match(line) for line in lines), lines
    return [STAMP.sub("", line, count=1) for line in lines]


def test_each_operation_is_a_line_also_those_before_the_file_was_named(sink: OperationSink, tmp_path: Path) -> None:
    for event in OTHERS:
        sink.handle(event, None)
    named = tmp_path / "test.log"
    named.write_text(operation_log.stamped("of a run before"))
    operation_log.leave_path(tmp_path, named)
    sink.handle(SAVED, None)
    assert read(named) == [
        "of a run before",
        "deleted what an interrupted save or deletion had left of step 3, /ck/iteration_0000003.incomplete",
        "moved step 9 from /ck/iteration_0000009 to /ck/superseded-1/iteration_0000009 (--fresh)",
        "refused step 7: it is torn; it is now /ck/quarantine/iteration_0000007",
        "deleted step 2, /ck/iteration_0000002 (retention, 1 are kept)",
        "saved step 5 (interval, 64 bytes) to /ck/iteration_0000005",
    ]


def test_what_waits_is_written_when_the_job_ends(sink: OperationSink, tmp_path: Path) -> None:
    sink.handle(OTHERS[0], None)
    operation_log.leave_path(tmp_path, tmp_path / "test.log")
    sink.handle(JobEnded(cast(Any, None), JobState.DONE, 0, 5, cast(Any, None)), None)
    assert len(read(tmp_path / "test.log")) == 1


def test_a_file_that_cannot_be_written_is_said_once(sink: OperationSink, tmp_path: Path, complaints: list[str]) -> None:
    operation_log.leave_path(tmp_path, tmp_path / "nowhere" / "test.log")
    for _ in range(2):
        sink.handle(SAVED, None)
    assert complaints == [
        f"cannot write {tmp_path}/nowhere/test.log, which the script has named for saves: No such file or directory"
    ]


def test_a_script_that_names_none_has_none(sink: OperationSink, tmp_path: Path) -> None:
    operation_log.leave_path(tmp_path, tmp_path / "test.log")
    operation_log.leave_path(tmp_path, None)
    sink.handle(SAVED, None)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def unnamed() -> Iterator[None]:
    yield
    operations.name_file(None)


@pytest.mark.usefixtures("unnamed")
def test_a_process_without_a_supervisor_writes_it_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operations.log_operation("deleted step 2, /ck/iteration_0000002 (1 are kept)")
    operations.name_file(tmp_path / "test.log")
    operations.log_operation("saved step 5 (interval, 64 bytes) to /ck/iteration_0000005")
    assert [line.split()[0] for line in read(tmp_path / "test.log")] == ["deleted", "saved"]
    assert capsys.readouterr().err.count("ftlaunch: ") == 2
