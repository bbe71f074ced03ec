"""What the page shows of a run dir: true, bounded, and made of whatever the journal has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.run_dirs import Timed, at, failed, log, run_dir, started

from ftlaunch.views.report_page.data import NoEvents, encoded, page_data
from ftlaunch.views.report_page.gathering.kept_incidents import COSTLIEST, NEWEST

END = at(1000, "job_finished", code=0, restarts=1)
MOST = 5_000_000  # bytes of a page


def hours(count: int, ranks: int, seconds: float = 300.0) -> list[Timed]:
    """So many incidents, one after another."""
    events = started(ranks)
    for number in range(count):
        when = 100 + seconds * number
        pairs = [[rank, 1.0 / (number + 1)] for rank in range(3)]
        events += [at(when - 50, "progress", step=10 * number, loss=pairs, step_seconds=pairs, of=ranks)]
        events += failed(when, 10 * number + 5, rank=number % ranks, lost=number % 3, trace="x" * 3000)
    return events


def test_an_incident_in_full(tmp_path: Path) -> None:
    lost = failed(100, 90, lost=4, trace="Traceback\nValueError: no", signature="s", action="restart", restarts_left=2)
    made = run_dir(tmp_path, [*started(), at(60, "progress", step=50), *lost, END])
    log(made, 0, 1, "hello\n\x1b[31mred\x1b[0m \x1b[2J\nTOKEN=abcdef123\n")
    data = page_data(made)
    [incident] = data["incidents"]
    assert (incident["at"], incident["rank"], incident["attempt"], incident["steps_lost"]) == (100, 1, 0, 4)
    assert incident["trace"] == ["Traceback", "ValueError: no"]
    assert incident["log"]["lines"] == ["hello", "red \\x1b[2J", "TOKEN=***"]
    assert incident["recovered_after"] == 10
    assert incident["cost"] == pytest.approx(0.5 + 10 + 4 * data["job"]["step_seconds"], abs=0.01)
    assert data["job"]["reached"] == 87
    assert data["attempts"] == [[1, 100, 1, 0, 0, 0, ""], [101, 1000, 1, 1, 1, 0, ""]]


def test_an_incident_says_what_the_resume_after_it_has_shown(tmp_path: Path) -> None:
    """The answer comes after the first new step, and belongs to the failure before the resume."""
    verified = at(111, "resume_verified", step=90, steps=1, answer="same", sentence="resumed at step 90: verified")
    differs = at(211, "resume_differs", resumed=95, step=96, rank=0, sentence="the resumed run differs: step 96 was")
    made = run_dir(tmp_path, [*started(), *failed(100, 90), verified, *failed(200, 95), differs, *failed(300, 99), END])
    data = page_data(made)
    shown = [incident["proof"] for incident in data["incidents"]]
    assert shown == ["resumed at step 90: verified", "the resumed run differs from step 96 on", ""]
    assert [row for row in data["history"]["rows"] if "the resumed run differs: step 96 was" in str(row)]


def test_the_phases_of_a_restart_add_up_to_its_time(tmp_path: Path) -> None:
    incident, started_again, resumed, recovered = failed(100, 90)
    exits = [at(100.5, "rank_exited", rank=rank, step=90) for rank in range(2)]
    again = at(started_again[0] + 1, "attempt_started", pids=None, seconds=0.7)
    made = run_dir(tmp_path, [*started(), incident, *exits, again, resumed, recovered, *failed(200, 99)[:1], END])
    first, second = page_data(made)["incidents"]
    assert first["phases"] == [
        ("detecting", 0.5), ("killing", 0.5), ("planning", 0.8), ("spawning", 0.7), ("loading", 6.0),
        ("first step", 2.0),
    ]  # fmt: skip
    assert sum(seconds for _, seconds in first["phases"]) == first["seen_after"] + first["recovered_after"]
    assert second["phases"] == [("detecting", 0.5), ("killing", 0.0)]


def test_an_incident_without_a_new_step_costs_until_the_next_one(tmp_path: Path) -> None:
    """Taken out: of three hangs in a row, of which each took half a minute to be seen, each cost four seconds."""
    first = failed(100, 90)[:3]  # resumed, and no new step
    data = page_data(run_dir(tmp_path, [*started(), *first, *failed(140, 90), END]))
    assert [incident["cost"] for incident in data["incidents"]] == [40.5, 10]


@pytest.mark.slow
def test_ten_thousand_incidents_fit(tmp_path: Path) -> None:
    data = page_data(run_dir(tmp_path, [*hours(10_000, 64), at(4e6, "job_finished", code=0)]))
    assert data["job"]["incidents"] == 10_000
    kept = len(data["incidents"])
    assert kept == NEWEST + COSTLIEST
    assert sum(row["count"] for row in data["folded"]) == 10_000 - kept
    assert f"the newest and the most costly {kept}" in " ".join(data["notes"])
    assert sum(data["columns"]["incidents"]) == 10_000
    assert sum(bar[2] for bar in data["attempts"]) == 10_001
    assert [incident["number"] for incident in data["incidents"]][-NEWEST:] == list(range(10_001 - NEWEST, 10_001))
    assert len(encoded(data)) < MOST


@pytest.mark.long
def test_what_grows_when_it_is_encoded_fits_all_the_same(tmp_path: Path) -> None:
    """Each `<` becomes six bytes. Taken out: the page had nine megabytes."""
    wide = {"sentence": "<" * 3000, "cause": "<" * 3000, "trace": ("<" * 99 + "\n") * 90}
    events = [*started(), *(event for n in range(200) for event in failed(100 + 20 * n, n, rank=n % 2, **wide))]
    made = run_dir(tmp_path, events)
    for attempt in range(201):
        log(made, attempt, attempt % 2, ("<" * 100 + "\n") * 600)
    data = page_data(made)
    assert len(encoded(data)) < MOST
    assert 10 < len(data["incidents"]) < NEWEST + COSTLIEST
    assert sum(row["count"] for row in data["folded"]) + len(data["incidents"]) == 200


def test_sixteen_thousand_ranks_fit(tmp_path: Path) -> None:
    ranks = 16_384
    ends = [at(101, "rank_exited", rank=rank, pid=1, code=-9, signal="SIGKILL", step=5) for rank in range(ranks)]
    told = at(60, "progress", step=4, loss=[[5, 1.0], [9, 2.0], [16_000, 3.0]], step_seconds=None, of=ranks)
    data = page_data(run_dir(tmp_path, [*started(ranks), told, *failed(100, 5)[:1], *ends, *failed(100, 5)[1:], END]))
    assert list(data["steps"]["loss"]["lines"]) == ["lowest", "median", "highest"]
    assert data["steps"]["loss"]["newest"] == [(5, 1.0), (9, 2.0), (16_000, 3.0)]
    assert len(encoded(data)) < 100_000


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    odd = json.dumps({"t": "2031-01-01T00:00:00Z", "mono": 5, "attempt": 0, "event": "progress", "step": "many"})
    deep = "[" * 100_000
    made = run_dir(tmp_path, [*started(), END], odd, "[1, 2]", deep, '{"t": "2031-01-', "\x00\xff", "")
    assert page_data(made)["notes"] == [
        "1 line of the journal is left out: it holds no event.",
        "3 lines are left out: each is torn: it is no whole JSON.",
        "Of 1 line of the journal a field is left out: it holds something else than its name means.",
    ]


def test_a_journal_of_an_older_version(tmp_path: Path) -> None:
    """No fields but those of the first version: nothing is known of losses, and that is how it is shown."""
    events = [at(0, "job_started", job_id="j"), at(1, "attempt_started"), at(9, "resumed"), at(20, "progress", step=3),
              at(30, "incident", cause="it broke"), at(31, "something_new", of="another kind")]  # fmt: skip
    data = page_data(run_dir(tmp_path, events))
    assert data["steps"]["loss"]["lines"] == {}
    assert data["job"]["state"] == "open"
    [incident] = data["incidents"]
    assert (incident["rank"], incident["kind"], incident["cause"], incident["log"]) == (-1, "", "it broke", None)


def test_without_any_event_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(NoEvents, match="has no whole event"):
        page_data(run_dir(tmp_path, [], "{"))
    with pytest.raises(FileNotFoundError):
        page_data(tmp_path)


def test_the_end_of_a_log_that_went_on_is_not_shown(tmp_path: Path) -> None:
    """A later run has written to the same file. Taken out: the words of a healthy run stood under an old incident."""
    again = [
        at(200, "job_started", job_id="j", ranks=2),
        at(201, "attempt_started", attempt=0),
        at(202, "resumed", step=5),
    ]
    made = run_dir(tmp_path, [*started(), *failed(100, 90)[:1], *again, END])
    log(made, 0, 1, "all is well\n")
    [incident] = page_data(made)["incidents"]
    assert incident["log"]["lines"] == []
    assert "a later process" in incident["log"]["note"]


def autopsy_of(made: Path, verdict: str) -> None:
    folder = made / "autopsy/attempt_0"
    folder.mkdir(parents=True)
    (folder / "verdict.txt").write_text(f"{verdict}\n")
    frame = '  File "/job/{0}.py", line 7 in work\n'
    waits = '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'
    for rank in range(3):
        head = "Current thread 0x00007f (most recent call first):\n"
        stack = head + (waits if rank != 1 else "") + frame.format("train" if rank != 1 else "data")
        (folder / f"rank_{rank}.stack.txt").write_text(stack)
        (folder / f"rank_{rank}.proc.json").write_text("{}")


def test_who_waits_for_whom(tmp_path: Path) -> None:
    hang = failed(100, 5, kind="hang", cause="rank 1 is hung", autopsy="/elsewhere/run/autopsy/attempt_0")
    made = run_dir(tmp_path, [*started(3), *hang, END])
    autopsy_of(made, "rank 1 is hung")
    [incident] = page_data(made)["incidents"]
    autopsy = incident["autopsy"]
    assert [group["ranks"] for group in autopsy["groups"]] == [[1], [0, 2]]
    assert [edge[:2] for edge in autopsy["edges"]] == [(1, 0)]
    assert "train.py:7" in autopsy["edges"][0][2]


@pytest.mark.parametrize(
    ("name", "text"),
    [("proc", '{"threads": [1]}'), ("proc", '{"children": {"pid": 1}}'), ("flight", '{"entries": ["x"]}')],
)
def test_damaged_files_of_an_autopsy_are_said_to_be(tmp_path: Path, name: str, text: str) -> None:
    hang = failed(100, 5, kind="hang", cause="rank 1 is hung", autopsy="/r/autopsy/attempt_0")
    made = run_dir(tmp_path, [*started(3), *hang, END])
    autopsy_of(made, "rank 1 is hung")
    (made / f"autopsy/attempt_0/rank_2.{name}.json").write_text(text)
    [incident] = page_data(made)["incidents"]
    assert incident["autopsy"]["note"] == "the files there are not as an autopsy writes them"


def test_the_autopsy_of_another_hang_is_not_shown(tmp_path: Path) -> None:
    hang = failed(100, 5, kind="hang", cause="rank 1 is hung", autopsy="/r/autopsy/attempt_0")
    made = run_dir(tmp_path, [*started(3), *hang, END])
    autopsy_of(made, "rank 2 is hung")
    [incident] = page_data(made)["incidents"]
    assert incident["autopsy"]["groups"] == []
    assert "of another hang" in incident["autopsy"]["note"]


def test_nodes_and_those_that_stand_by(tmp_path: Path) -> None:
    events = [*started(), at(11, "node_joined", node=1, host="a", address="x"), at(12, "node_joined", node=2, host="b"),
              at(13, "node_placed", node=1, place=0), at(20, "node_left", node=1, place=0, why="gone"),
              at(21, "node_placed", node=2, place=0), at(22, "node_joined", node=3, host="a"), END]  # fmt: skip
    rows = {row["host"]: row["stays"] for row in page_data(run_dir(tmp_path, events))["nodes"]["rows"]}
    assert rows["a"] == [[11, 13, -1], [13, 20, 0], [22, 1000, -1]]
    assert rows["b"] == [[12, 21, -1], [21, 1000, 0]]
