"""`ftctl dashboard` beside run dirs that are odd, empty, old, or made by somebody who means harm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.proc.test_dashboard import old_job, opened
from tests.support.ctl import ftctl, journal, started

pytest.importorskip("starlette", reason="Starlette is not installed (pip install 'ftlaunch[dashboard]')")
pytest.importorskip("uvicorn", reason="Uvicorn is not installed (pip install 'ftlaunch[dashboard]')")
pytest.importorskip("httpx", reason="HTTPX is not installed (pip install httpx)")

from tests.support.dashboards import Dashboard, news, order

pytestmark = pytest.mark.long

__all__ = ["opened"]

ODD_NAME = os.fsdecode(b"run-\xff%2f\xe2\x82")


def test_a_run_dir_whose_name_is_no_text_has_a_row_and_a_page(tmp_path: Path, opened: list[Dashboard]) -> None:
    """Taken out (names quoted in the browser, and by the router): no row of any job, and 500 for a RUN."""
    run_dir = old_job(tmp_path / "runs" / ODD_NAME, "odd")
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    with one.client() as client:
        with client.stream("GET", "news") as response:
            (row,) = next(news(response))["rows"]
        assert '"id":"odd"' in client.get(row["link"]).text
        with client.stream("GET", f"{row['link']}news") as response:
            assert next(news(response))["live"]["state"] == "done"
        assert "not running" in order(client, f"{row['link']}do", do="stop").json()["error"]
    opened.append(alone := Dashboard(tmp_path, run_dir))
    with alone.client() as client:
        assert '"id":"odd"' in client.get("").text


def test_an_index_of_bad_run_dirs_tells_of_the_good_one(tmp_path: Path, opened: list[Dashboard]) -> None:
    old_job(tmp_path / "runs" / "good")
    journal(tmp_path / "runs" / "nameless", started(), {"event": []})
    journal(tmp_path / "runs" / "stopped", started(), {"event": "job_stopped", "code": 75, "step": None})
    (tmp_path / "runs" / "fifo").mkdir()
    os.mkfifo(tmp_path / "runs" / "fifo" / "events.jsonl")
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    with one.client() as client:
        with client.stream("GET", "news") as response:
            found = {row["name"]: row["state"] for row in next(news(response))["rows"]}
        assert found == {"good": "done", "nameless": "killed", "stopped": "stopped", "fifo": "unreadable"}
        for name in ("good", "nameless", "stopped"):
            assert '"version":1' in client.get(f"run/{name}/").text
        waiting = client.get("run/fifo/")
        assert (waiting.status_code, "No page yet" in waiting.text) == (200, True)
        assert "Traceback" not in one.said


def test_a_fifo_among_logs_and_autopsies_holds_no_page(tmp_path: Path, opened: list[Dashboard]) -> None:
    hang = {"event": "incident", "rank": 0, "kind": "hang", "cause": "x", "autopsy": "/r/autopsy/attempt_0"}
    run_dir = journal(tmp_path / "runs" / "a", started(), hang)
    for path in (run_dir / "logs/attempt_0/rank_0.log", run_dir / "autopsy/attempt_0/verdict.txt"):
        path.parent.mkdir(parents=True)
        os.mkfifo(path)
    opened.append(one := Dashboard(tmp_path, run_dir))
    with one.client() as client:
        assert client.get("").text.count("cannot read it: it is no regular file") == 2
    code, out, _ = ftctl("report", run_dir, "--html", cwd=tmp_path)
    assert (code, "the page is" in out) == (0, True)


def test_a_journal_that_begins_later_is_told_of_without_asking_again(tmp_path: Path, opened: list[Dashboard]) -> None:
    """Taken out: the page was the text `.`, and stayed that."""
    run_dir = tmp_path / "runs" / "a"
    run_dir.mkdir(parents=True)
    (run_dir / "events.jsonl").write_text('{"event": "job_sta')
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    with one.client() as client:
        assert "No page yet" in client.get("run/a/").text
        assert "EventSource" in client.get("run/a/waiting.js").text
        with client.stream("GET", "run/a/news") as response:
            messages = news(response)
            assert next(messages)["live"]["state"] == "empty"
            shutil.rmtree(run_dir)
            old_job(run_dir)
            assert next(parts for parts in messages if "job" in parts)["job"]["id"] == "j"
        assert '"version":1' in client.get("run/a/").text


def test_a_journal_of_an_older_version_has_a_row_and_a_page(tmp_path: Path, opened: list[Dashboard]) -> None:
    """No fields but those of the first version, and an event that this one does not know."""
    old = [{"event": "job_started", "job_id": "old"}, {"event": "attempt_started"}, {"event": "resumed"},
           {"event": "progress", "step": 3}, {"event": "incident", "cause": "it broke"}, {"event": "sung", "of": []},
           {"event": "job_failed"}]  # fmt: skip
    journal(tmp_path / "runs" / "old", *old)
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    with one.client() as client:
        with client.stream("GET", "news") as response:
            (row,) = next(news(response))["rows"]
        assert (row["state"], row["step"], row["incident"]) == ("failed", 3, "it broke")
        with client.stream("GET", "run/old/news") as response:
            told = next(news(response))
        assert (told["job"]["id"], told["incidents"][0]["cause"]) == ("old", "it broke")
        assert "`memory_dir` of its job_started is missing" in order(client, "run/old/do", do="stop").json()["error"]
        assert client.get("run/old/nodes").status_code == 409
    assert "Traceback" not in one.said
