"""What `ftctl top` reads: journals of any length in little memory, and answers of another version."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.history.journal import EVENTS
from ftlaunch.history.runs import CannotFind, Run, load_newest
from ftlaunch.views.top.job_watch import JobWatch, Unanswered

STARTED = {"event": "job_started", "job_id": "j", "pid": 1, "start_time": 0, "memory_dir": "/nothing/here"}
STATUS = {"state": "running", "attempt": 0, "restarts_left": 3, "max_restarts": 3, "in_memory": 1, "committed": 1}
RANK = {"rank": 0, "pid": 1, "alive": False, "phase": "train", "step": 1, "beat_age": 0.1, "step_seconds": 0.1}


def written(run_dir: Path, *events: dict[str, Any]) -> Path:
    with (run_dir / EVENTS).open("a") as file:
        file.writelines(json.dumps({"t": "2031-01-02T03:04:05.000Z", "mono": 1, "attempt": 0, **event}) + "\n"
                        for event in events)  # fmt: skip
    return run_dir


def silent(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    raise Unanswered("gone", gone=True)


def test_a_long_journal_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """Taken out by hand: with the list that `runs.find` makes of it this takes 16 MB, with all its news 7 MB."""
    steps = [{"event": "checkpoint_committed", "step": n, "bytes": 1, "seconds": 1.0} for n in range(20_000)]
    run_dir = written(tmp_path, STARTED, *steps, {"event": "job_finished", "code": 0})
    size = (run_dir / EVENTS).stat().st_size
    del steps
    tracemalloc.start()
    try:
        picture = JobWatch(load_newest(run_dir), silent).make_picture()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert picture.ended == "done (exit code 0)"
    assert (len(picture.news), picture.news[-2].sentence[:13]) == (200, "step 19999 is")
    assert most < 5 << 20 > size / 2, f"{most} bytes for a journal of {size}"


def test_the_newest_run_is_the_last_that_has_begun(tmp_path: Path) -> None:
    failed = {"event": "job_failed", "code": 1, "sentence": "no"}
    run_dir = written(tmp_path, STARTED, failed, {**STARTED, "pid": 2}, {"event": "progress", "step": 3})
    with (run_dir / EVENTS).open("a") as file:
        file.write('{"event": "job_torn\n[1]\n{"event": ["job_"]}\n')
    run = load_newest(run_dir)
    assert (run.pid, run.end) == (2, None)
    written(run_dir, {"event": "job_stopped", "code": 75})
    assert (load_newest(run_dir).end or {})["event"] == "job_stopped"
    with pytest.raises(CannotFind, match="no such file"):
        load_newest(tmp_path / "nothing")


def test_a_run_that_begins_anew_is_followed(tmp_path: Path) -> None:
    watch = JobWatch(load_newest(written(tmp_path, STARTED, {"event": "job_failed", "code": 1})), silent)
    assert watch.make_picture().ended
    written(tmp_path, {**STARTED, "pid": 7})
    assert (watch.make_picture().ended, watch.run.pid) == ("", 7)


@pytest.mark.parametrize(
    ("answer", "lacking"),
    [({}, "state"), ({**STATUS, "ranks": [RANK]}, ""), (STATUS, "ranks"),
     ({**STATUS, "ranks": [{k: v for k, v in RANK.items() if k != "beat_age"}]}, "beat_age"),
     ({**STATUS, "ranks": ["x"]}, "rank"), ({**STATUS, "ranks": [], "head": "h"}, "nodes")],
)  # fmt: skip
def test_an_answer_of_another_version_is_said(tmp_path: Path, answer: dict[str, Any], lacking: str) -> None:
    """Taken out by hand: without `lack_of` a KeyError ends the view."""
    watch = JobWatch(load_newest(written(tmp_path, STARTED)), lambda run, request: answer)
    picture = watch.make_picture()
    assert (picture.status is None) is bool(lacking)
    assert (f" lacks {lacking}: " in picture.silence) is bool(lacking)


def test_what_the_journal_adds_up_to_is_told(tmp_path: Path) -> None:
    step = {"event": "progress", "step": 7}
    incident = {
        "event": "incident",
        "kind": "killed",
        "rank": 1,
        "step": 7,
        "since_progress": 0.5,
        "verdict": "restart",
    }
    lines = [STARTED, {"event": "resumed", "step": 0}, step, incident, {**incident, "step": "x"}]
    watch = JobWatch(load_newest(written(tmp_path, *lines)), lambda run, request: {**STATUS, "ranks": [RANK]})
    past = watch.make_picture().past
    assert past is not None
    assert past.incidents == 1, "a line with a value of another type is passed over"
    assert past.seconds == 0.0, "the journal is of the future"
