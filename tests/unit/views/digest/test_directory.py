"""A directory of run dirs, some of which are broken: these are named, and the others are counted."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from tests.support.ctl import ftctl, journal, started
from tests.unit.views.digest.test_job_digest import at, failure, life

from ftlaunch.views.digest import view
from ftlaunch.views.digest.directory import digest, run_dirs


def put(runs: Path, name: str, events: list[dict[str, object]]) -> Path:
    (runs / name).mkdir(parents=True)
    (runs / name / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return runs / name


def test_broken_run_dirs_are_named_and_the_others_are_counted(tmp_path: Path) -> None:
    put(tmp_path, "good", life())
    torn = put(tmp_path, "torn", life())
    with (torn / "events.jsonl").open("a") as file:
        file.write('{"t": "2030-')
    put(tmp_path, "empty", [])
    put(tmp_path, "strange", [at(0, "job_started", job_id="j", ranks=[4])])
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "lock").touch()
    (tmp_path / "notes").mkdir()  # no run dir
    (tmp_path / "latest").symlink_to("good")  # counts once
    os.mkfifo(tmp_path / "pipe")
    (put(tmp_path, "fifo", []) / "events.jsonl").unlink()
    os.mkfifo(tmp_path / "fifo" / "events.jsonl")
    (put(tmp_path, "folder", []) / "events.jsonl").unlink()
    (tmp_path / "folder" / "events.jsonl").mkdir()
    put(tmp_path, "old", [started("old", ranks=1), *life()[3:]])
    found = digest(tmp_path, 0.0)
    assert [job.name for job in found.jobs] == ["good", "old", "torn"]
    assert [job.torn for job in found.jobs] == [0, 0, 1]
    assert found.unread == {
        "begun": "there is no events.jsonl",
        "empty": "its journal has no whole event",
        "fifo": "events.jsonl is no file",
        "folder": "events.jsonl is no file",
        "strange": found.unread["strange"],
    }
    assert "event of another form" in found.unread["strange"]
    said = "\n".join(view.lines(found))
    assert "not in these numbers, 5 run dirs that could not be read:" in said
    for name in found.unread:
        assert name in said


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything: run as another user")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, "closed", life()) / "events.jsonl"
    path.chmod(0)
    assert digest(tmp_path, 0.0).unread == {"closed": "permission denied"}


def test_jobs_that_did_nothing_since_are_counted_only(tmp_path: Path) -> None:
    put(tmp_path, "early", life())
    put(tmp_path, "late", [{**event, "t": "2040" + str(event["t"])[4:]} for event in life()])
    found = digest(tmp_path, 2_100_000_000.0)
    assert ([job.name for job in found.jobs], found.idle) == (["late"], 1)


def test_the_flaky_node_of_many_jobs_is_named(tmp_path: Path) -> None:
    hosts = [f"n{number}" for number in range(16)]
    for number in range(8):
        events = life(hosts)
        events[3] = failure(50, host="n5" if number < 6 else "n9")
        put(tmp_path, f"job-{number}", events)
    found = digest(tmp_path, 0.0)
    assert [node.host for node in found.flaky] == ["n5"]
    said = "\n".join(view.lines(found))
    assert "FLAKY: n5: 6 of 8 failures that may be a machine's own, in 6.2% of the time" in said
    assert view.data(found)["nodes"]["n5"]["failures"] == 6


def test_a_long_journal_is_not_held_in_memory(tmp_path: Path) -> None:
    """Taken out by hand: with the events put into a list first it is more than that."""
    back = [at(3, "recovered", step=3, seconds=1.0), failure(3, cause="x" * 400)]
    put(tmp_path, "long", [*life()[:3], *(back * 3_000)])
    tracemalloc.start()
    found = digest(tmp_path, 0.0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.jobs[0].incidents == 3_000
    assert most < 2 << 20


def test_a_journal_of_rubbish_is_named_and_no_job_that_had_nothing(tmp_path: Path) -> None:
    put(tmp_path, "good", life())
    put(tmp_path, "rubbish", [{"event": "x"}, {"event": "y", "mono": "z"}])
    put(tmp_path, "old", life())
    for since, idle in ((0.0, 0), (4e9, 2)):
        found = digest(tmp_path, since)
        assert found.unread == {"rubbish": "its journal has no event with a time"}
        assert found.idle == idle


def test_the_command(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    put(runs, "a", life())
    put(runs, "b\x1b[2J", life())
    code, out, err = ftctl("report", "runs", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("2 jobs in runs: 2 done\n")
    assert "\x1b" not in out
    code, out, _ = ftctl("report", runs, "--json", "--since", "3650d", cwd=tmp_path)
    assert (code, json.loads(out)["incidents"]) == (0, 2)
    code, out, err = ftctl("report", "runs", "--since", "1w", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("2 jobs in runs: 2 done\n"), "these jobs are of the future"
    code, _, err = ftctl("report", "runs", "--since", "1y", cwd=tmp_path)
    assert code == 2
    assert "'1y' is not a duration; write 90s or 5m" in err
    code, _, err = ftctl("report", "runs", "--html", cwd=tmp_path)
    assert code == 1
    assert "cannot write a page of runs: it holds many runs, and a page tells of one; name a run" in err
    assert "steps that count" in ftctl("report", "a", cwd=tmp_path)[1], "a run is a run"
    code, _, err = ftctl("report", "a", "--since", "7d", cwd=tmp_path)
    assert code == 2
    assert "--since is for a directory of run dirs" in err


def test_a_run_of_the_name_of_a_directory_is_the_run(tmp_path: Path) -> None:
    journal(tmp_path / "runs" / "week", started("week"), {"event": "job_finished", "code": 0})
    put(tmp_path / "week", "inside", life())
    assert ftctl("report", "week", cwd=tmp_path)[1].startswith("job week:")
    assert ftctl("report", "./week", cwd=tmp_path)[1].startswith("1 job in week:")
    assert run_dirs(tmp_path / "week") == [tmp_path / "week" / "inside"]
