"""`ftctl report --html`: the page of a job whose supervisor was killed, and of run dirs that have none to give."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.ctl import ftctl, journal, start, started
from tests.support.harness import FtJob


def shown(page: Path) -> dict[str, Any]:
    """The data in a page."""
    [told] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(told)


def test_a_job_whose_supervisor_was_killed(job: FtJob) -> None:
    start(job, FAULT="1 20")
    job.wait_event("recovered")
    job.supervisor.kill()
    job.supervisor.wait()
    code, out, _ = ftctl("report", job.run_dir, "--html", cwd=job.home)
    page = job.run_dir / "report.html"
    assert (code, out) == (0, f"the page is {page}\n")
    data = shown(page)
    assert data["job"]["id"] == job.job_id
    assert data["job"]["state"] == "open"
    [incident] = data["incidents"]
    assert (incident["rank"], incident["kind"]) == (1, "killed")
    assert "was killed by SIGKILL" in incident["sentence"]
    assert incident["log"]["lines"] == ["resumed at 0"]
    job.dispose()


def test_the_page_goes_where_it_is_wanted(tmp_path: Path) -> None:
    journal(tmp_path / "runs/a", started("a"))
    assert ftctl("report", "--html", "mine.html", cwd=tmp_path)[0] == 0
    assert shown(tmp_path / "mine.html")["job"]["id"] == "a"
    assert not (tmp_path / "runs/a/report.html").exists()


def test_the_report_of_an_odd_journal_is_that_of_the_page(tmp_path: Path) -> None:
    """Taken out (`sound` in `ftctl report`): it ended in a traceback, over a step that is null and bytes as text."""
    odd = [
        {"t": "2031-01-01T00:00:00Z", "mono": 900, "attempt": 0, "event": "resumed", "step": None},
        {"t": "2031-01-01T00:00:00Z", "mono": 901, "attempt": 0, "event": "progress", "step": None},
        {"t": "2031-01-01T00:00:00Z", "mono": 902, "attempt": 0, "event": "incident", "step": "x", "kind": "killed"},
        {"t": "2031-01-01T00:00:00Z", "mono": 903, "attempt": 0, "event": "checkpoint_committed", "bytes": "many"},
    ]
    run = journal(tmp_path / "run", started(), *odd)
    code, out, error = ftctl("report", run, "--json", cwd=tmp_path)
    assert (code, error) == (0, "")
    assert ftctl("report", run, cwd=tmp_path)[0] == 0
    assert ftctl("report", run, "--html", cwd=tmp_path)[0] == 0
    told, data = json.loads(out), shown(run / "report.html")
    assert len(told["incidents"]) == data["job"]["incidents"] == 1
    assert told["effective"] == data["effective"]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    run = journal(tmp_path / "run", started())
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "events.jsonl").write_text("{")
    code, _, error = ftctl("report", "--html", "run", cwd=tmp_path)
    assert (code, error) == (
        1,
        "ftctl: cannot write a page to run: the name of FILE must end in .html; if run is the run, write"
        " `ftctl report run --html`\n",
    )
    code, _, error = ftctl("report", run, "--html", "no/such.html", cwd=tmp_path)
    assert code == 1
    assert error.startswith("ftctl: cannot write the page no/such.html: ")
    assert "No such file or directory" in error
    code, _, error = ftctl("report", empty, "--html", cwd=tmp_path)
    assert (code, error) == (
        1, f"ftctl: cannot write the page {empty}/report.html: the journal in {empty} has no whole event\n"
    )  # fmt: skip
    assert ftctl("report", "nobody", "--html", cwd=tmp_path)[0] == 2


def test_the_process_that_writes_it_says_why_it_cannot(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ftlaunch.views.report_page", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"{tmp_path}/events.jsonl: No such file or directory\n")


def test_it_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    """It is started at the end of every run: what it imports is paid for each time."""
    run = journal(tmp_path / "run", started())
    code = "import sys; from ftlaunch.views.report_page.__main__ import main; main([sys.argv[1]]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(run)], check=True, capture_output=True, text=True)
    assert {"torch", "click", "yaml", "ftlaunch.engine", "asyncio"} & set(done.stdout.split()) == set()
