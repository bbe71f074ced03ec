"""A walk that goes on while pages are made of it, and journals that hold anything at all."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_dirs import Timed, at, failed, lines, run_dir, started

from ftlaunch.history.goodput import TIMED_EVENTS
from ftlaunch.views.dashboard.index_rows import IndexRow
from ftlaunch.views.dashboard.live_run import LiveRun
from ftlaunch.views.report_page.data import NoEvents, data_of, encoded, page_data
from ftlaunch.views.report_page.gathering.walk import Walk
from ftlaunch.views.report_page.run_files import RunFiles

NODES = [
    at(11, "node_joined", node=1, host="a"),
    at(12, "node_placed", node=1, place=0),
    at(13, "node_joined", node=2, host="b"),
]


def a_life() -> list[Timed]:
    """Two runs of a supervisor of which the first is killed, a head that is replaced, failures, nodes, checkpoints."""
    pairs = [[0, 1.5], [1, 2.5]]
    first = [*started(), *NODES, at(30, "progress", step=20, loss=pairs), *failed(50, 40, lost=3)]
    head = [at(90, "job_started", job_id="j"), at(91, "node_left", node=2), at(92, "attempt_adopted", attempt=1)]
    saved = at(100, "checkpoint_committed", step=60, why="request", seconds=2, bytes=5)
    again = [
        at(130, "job_started", job_id="j", killed_at={"step": 70, "ago": 9}),
        at(131, "progress", step=71, loss=pairs),
        at(132, "attempt_started"),
        at(139, "resumed", step=70),
        at(150, "rank_restarted", rank=1),
    ]
    rest = [at(170, "stop_requested", by="x"), at(171, "rank_exited", rank=0, step=90), at(172, "job_stopped", step=90)]
    return [*first, *head, saved, *again, *rest]


def drawn(run_dir: Path, walk: Walk) -> dict[str, Any]:
    data = data_of(run_dir, walk, RunFiles(run_dir))
    return json.loads(encoded(data | {"made": 0}))  # type: ignore[no-any-return]


def test_a_page_made_on_the_way_is_that_of_the_journal_so_far(tmp_path: Path) -> None:
    """Taken out (the copies, one after another): what was closed for one page was missing or doubled in the next."""
    made = run_dir(tmp_path, a_life())
    events = [json.loads(line) for line in lines(a_life())]
    going, hooked = Walk(hooked=True), Walk(hooked=True)
    for count, event in enumerate(events, 1):
        going.apply(event)
        page = drawn(made, going.closed())
        assert drawn(made, going.closed()) == page, event
        if going.resumed:
            hooked = Walk(hooked=True)
            for one in events[:count]:
                hooked.apply(one)
            assert page == drawn(made, hooked.closed()), event
    assert drawn(made, going.closed()) == json.loads(encoded(page_data(made) | {"made": 0}))


def test_ranks_that_say_their_steps_late_are_known_from_the_beginning(tmp_path: Path) -> None:
    """Taken out (the second walk): what came before the first resume had no class."""
    late = [at(0, "job_started", job_id="j"), at(1, "attempt_started"), at(60, "resumed", step=0)]
    made = run_dir(tmp_path, [*late, at(70, "progress", step=5), at(80, "job_finished", code=0)])
    seconds = {row["name"]: row["seconds"] for row in page_data(made)["ledger"]}
    assert (seconds["unknown"], seconds["starting"]) == (0, 60)
    live = LiveRun(made, listed=False)
    live.update()
    assert live.data is not None
    assert live.data["ledger"] == page_data(made)["ledger"]


@pytest.mark.long
def test_attempts_without_number_take_bounded_time_and_room() -> None:
    """Taken out (the oldest was looked for among all): each attempt beyond the bound took fifty times as long."""
    walk, took = Walk(hooked=True), list[float]()
    for number in range(104_000):
        if number % 4000 == 0:
            took.append(time.thread_time())
        stamp = "2031-01-01T00:00:00Z"
        walk.apply({"t": stamp, "mono": number, "attempt": number, "event": "attempt_started"})
    took.append(time.thread_time())
    assert len(walk.begun_in) == 100_000
    assert took[-1] - took[-2] < 15 * (took[-2] - took[-3])


ODD = ["null", "[]", "{}", '"x"', "true", "-1", "1.5", "1e300", "1e400", "NaN", '"\\ud800\\u0000"', '[[1, "a"], null]']
FIELDS = [
    "t", "mono", "attempt", "event", "step", "rank", "kind", "sentence", "cause", "verdict", "autopsy", "signature",
    "trace", "action", "delay", "source", "code", "by", "why", "error", "path", "host", "address", "node", "place",
    "job_id", "ranks", "command", "run_dir", "log_dir", "checkpoint_dir", "memory_dir", "pid", "start_time",
    "killed_at", "loss", "step_seconds", "of", "slots", "status", "seconds", "bytes", "weights_only", "down",
]  # fmt: skip
NAMES = sorted(
    TIMED_EVENTS | {"node_joined", "node_placed", "node_left", "rolled_back", "memory_reduced", "unsound", "rank_slow",
             "rank_restarted", "checkpoint_failed", "checkpoint_rejected", "loaded", "save_requested", "saver_died",
             "saver_missing", "storage_silent", "drain_requested"}
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "odd", [pytest.param(odd, marks=pytest.mark.slow if number % 8 else ()) for number, odd in enumerate(ODD)]
)
def test_a_field_of_any_kind_breaks_no_page_and_no_row(tmp_path: Path, odd: str) -> None:
    """Taken out (texts made of texts only, a step that must be a number): TypeError, and no page at all.

    121 incidents and more: the kinds of those that are folded are counted.
    """
    for field in FIELDS:
        told = {"t": '"2031-01-01T00:00:05Z"', "mono": "5", "attempt": "0", "source": '"memory"', field: odd}
        rest = ", ".join(f'"{name}": {value}' for name, value in told.items())
        events = [f'{{"event": "{name}", {rest}}}' for name in NAMES if field != "event"] or [f"{{{rest}}}"]
        struck = [f'{{"event": "incident", {rest}}}'] * (125 if field in ("kind", "rank", "autopsy") else 1)
        made = run_dir(tmp_path, [*started(), *NODES], *events, *struck, "")
        encoded(page_data(made))
        for ended in (True, False):
            live, row = LiveRun(made, listed=True).update(), IndexRow("run", made).update()
            assert live["live"]["state"] not in ("unreadable", "empty"), (field, live["live"])
            assert row["state"] != "unreadable", (field, row)
            json.dumps([live, row], allow_nan=False)
            if ended:
                with (made / "events.jsonl").open("a") as file:
                    file.write(f'{{"event": "job_started", {rest}}}\n{{"event": "attempt_started", {rest}}}\n')


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00"])
def test_a_clock_that_is_far_off_makes_a_page_all_the_same(tmp_path: Path, stamp: str) -> None:
    """Taken out (the zone of the begin, which the page never used): no page for the years 1 and 9999."""
    made = tmp_path / "run"
    made.mkdir()
    line = {"t": stamp, "mono": 5, "attempt": 0, "event": "job_started", "job_id": "far"}
    (made / "events.jsonl").write_text(json.dumps(line) + "\n")
    try:
        assert page_data(made)["job"]["id"] == "far"
    except NoEvents:
        assert not stamp.endswith("Z"), "a time without a zone that this machine's clock cannot have"


def test_a_node_that_is_asked_to_leave_stands_in_the_history(tmp_path: Path) -> None:
    """Its `node` is a place or a host. Taken out: the line was left out as one whose number is none."""
    asked = [at(20, "drain_requested", node="1", by="ftctl drain"), at(21, "drain_requested", node="host-b", by="me")]
    data = page_data(run_dir(tmp_path, [*started(), *asked]))
    told = [row[2] for row in data["history"]["rows"]]
    assert "asked to let a node leave, node 1: ftctl drain" in told
    assert "asked to let a node leave, node host-b: me" in told
    assert data["notes"] == []
