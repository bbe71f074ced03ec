"""`ftctl dashboard` in a browser, on real jobs: news without reload, commands that ask first, and who is refused."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.browser.conftest import PHONE, WIDE, Window
from tests.support.ctl import journal, start, started
from tests.support.dashboards import Dashboard, news
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

Serve = Callable[..., Dashboard]


def train(job: FtJob) -> None:
    """A job that goes on until it is told to stop. Its script lies beside it: pictures for the docs show its path."""
    for name in ("tiny.py", "quick.py"):
        shutil.copy(JOBS / name, job.home)
    job.start(
        "--checkpoint-dir", "ckpt", "--storage-interval", "50", script="tiny.py",
        args=("--out", "out", "--steps", "1000000", "--step-time", "0.02"),
    )  # fmt: skip
    job.wait_event("checkpoint_committed")


def end(job: FtJob) -> None:
    job.supervisor.send_signal(signal.SIGTERM)
    job.wait()


def test_a_rank_is_killed_and_the_page_tells_without_reload(job: FtJob, serve: Serve, window: Window) -> None:
    train(job)
    window.open(serve("--dir", job.home), f"run/{job.run_dir.name}/")
    page = window.page
    page.evaluate("window.neverLoadedAgain = true")
    assert page.locator(".incident").count() == 0
    os.kill(job.pids()[1], signal.SIGKILL)
    page.locator(".incident", has_text="was killed by SIGKILL").wait_for()
    job.wait_event("recovered")
    page.locator(".incident", has_text="cost").wait_for()
    assert page.evaluate("window.neverLoadedAgain") is True
    assert len(job.events("incident")) == 1
    whole = page.locator("#window").inner_text()
    assert whole.startswith("all of it")
    page.get_by_role("button", name="Zoom in").click()
    page.locator("#window").filter(has_not_text="all of it").wait_for()
    page.get_by_role("button", name="All", exact=True).click()
    page.locator("#window").filter(has_text="all of it").wait_for()
    page.locator(".incident summary").first.click()
    assert window.violations() == []
    page.locator(".incident summary").first.click()
    end(job)
    page.locator(".live-bar .state", has_text="stopped").wait_for()
    assert page.get_by_role("button", name="Stop the job").is_disabled()


def test_the_picture_of_the_guide(job: FtJob, serve: Serve, window: Window) -> None:
    """docs/images/dashboard.png is made here, by `make pictures`: timeline and incident are in it."""
    train(job)
    window.open(serve("--dir", job.home), f"run/{job.run_dir.name}/")
    os.kill(job.pids()[1], signal.SIGKILL)
    job.wait_event("recovered")
    wait_for(lambda: len(job.events("checkpoint_committed")) > 3, "training that goes on")
    page = window.page
    page.locator(".incident", has_text="cost").wait_for()
    page.set_viewport_size({"width": 1200, "height": 1250})
    incident, timeline = page.locator(".incident").first.bounding_box(), page.locator("#timeline").bounding_box()
    assert incident is not None
    assert timeline is not None
    page.set_viewport_size({"width": 1200, "height": int(incident["y"] + incident["height"]) + 30})
    assert timeline["y"] + timeline["height"] < incident["y"]
    window.picture("dashboard.png")
    end(job)


def test_stop_asks_first_and_the_journal_says_who(job: FtJob, serve: Serve, window: Window) -> None:
    train(job)
    window.open(serve(job.run_dir))
    page = window.page
    page.get_by_role("button", name="Stop the job").click()
    dialog = page.get_by_role("dialog", name="Stop this job?")
    assert "saved" in dialog.inner_text()
    assert "exit code 75" in dialog.inner_text()
    assert page.evaluate("document.activeElement.textContent") == "Do nothing", "Return alone stops no job"
    assert window.violations() == []
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert page.evaluate("document.activeElement.textContent") == "Stop the job"
    assert not job.events("stop_requested")
    page.get_by_role("button", name="Stop the job").click()
    dialog.get_by_role("button", name="Stop the job").click()
    page.get_by_role("status").filter(has_text="The job is asked to stop").wait_for()
    assert job.wait() == 75
    by = job.events("stop_requested")[0]["by"]
    assert by.startswith("dashboard of ")
    assert by.endswith(", asked from 127.0.0.1")
    page.locator(".live-bar .state", has_text="stopped").wait_for()
    page.locator("#history", has_text=by).wait_for()


def test_save_asks_first_and_a_checkpoint_follows(job: FtJob, serve: Serve, window: Window) -> None:
    train(job)
    window.open(serve(job.run_dir))
    page = window.page
    assert page.get_by_role("button", name="Drain a node").is_hidden(), "one node cannot leave"
    page.get_by_role("button", name="Save now").click()
    page.get_by_role("dialog").get_by_role("button", name="Save now").click()
    page.get_by_role("status").filter(has_text="A checkpoint of one of the next steps").wait_for()
    wait_for(lambda: "request" in [event["why"] for event in job.events("checkpoint_committed")], "the checkpoint")
    page.locator("#history", has_text="asked for a checkpoint: dashboard of").wait_for()
    end(job)


def test_the_run_dir_is_removed_while_its_page_is_open(tmp_path: Path, serve: Serve, window: Window) -> None:
    run_dir = journal(tmp_path / "runs" / "a", started(ranks=1), {"event": "job_finished", "code": 0, "restarts": 0})
    one = serve("--dir", "runs")
    window.open(one, "run/a/")
    page = window.page
    (run_dir / "events.jsonl").rename(run_dir / "kept")
    os.mkfifo(run_dir / "events.jsonl")
    page.get_by_role("status").filter(has_text="The journal cannot be read now").wait_for()
    page.locator("#ending", has_text="it is no regular file").wait_for()
    shutil.rmtree(run_dir)
    page.get_by_role("status").filter(has_text="The run dir is gone").wait_for()
    assert page.locator("#history tbody tr").count() == 2, "the last state stays"
    assert window.violations() == []
    page.get_by_role("link", name="All jobs").click()
    page.get_by_text("There is no run dir with a journal here yet.").wait_for()


def test_a_dashboard_that_ends_is_told_and_another_one_in_its_place_taken(
    tmp_path: Path, serve: Serve, window: Window
) -> None:
    journal(tmp_path / "runs" / "a", started(ranks=1), {"event": "job_finished", "code": 0, "restarts": 0})
    (tmp_path / "t").write_text("a-token-that-is-long-enough")
    (tmp_path / "t").chmod(0o600)
    one = serve("--dir", "runs", "--token-file", "t")
    one.token = "a-token-that-is-long-enough"
    window.open(one, "run/a/")
    window.expected = ("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING")
    one.close()
    page = window.page
    page.get_by_role("status").filter(has_text="No connection to the dashboard since").wait_for()
    assert page.get_by_role("button", name="Save now").is_disabled()
    serve("--dir", "runs", "--token-file", "t", "--port", str(one.port))
    page.get_by_role("status").get_by_text("live", exact=True).wait_for()


def test_jobs_come_into_the_index_by_themselves_and_names_stay_text(
    job: FtJob, tmp_path: Path, serve: Serve, window: Window
) -> None:
    evil = "<img src=x onerror=alert(1)>"
    (tmp_path / "empty").mkdir()
    window.open(serve("--dir", tmp_path))
    page = window.page
    page.get_by_text("There is no run dir with a journal here yet.").wait_for()
    journal(tmp_path / evil, started(evil, ranks=1), {"event": "incident", "sentence": evil, "verdict": "restart"})
    page.get_by_role("link", name=evil).wait_for()
    assert page.locator("img").count() == 0
    start(job)
    page.locator("tr", has_text=job.job_id).filter(has_text="running").wait_for()
    assert window.violations() == []
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    table = page.get_by_role("region", name="Table of the jobs")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth"), "no column is out of sight"
    cell = page.get_by_role("row").filter(has_text=job.job_id).get_by_role("cell").nth(4)
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Ranks"'
    window.picture("dashboard_phone.png")
    page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    window.picture("dashboard_jobs.png")
    page.get_by_role("link", name=evil).click()
    page.get_by_role("heading", name=evil).wait_for()
    assert page.locator("img").count() == 0
    page.locator(".live-bar .state", has_text="killed").wait_for()
    end(job)


def test_a_run_dir_without_an_event_waits_and_becomes_the_page(tmp_path: Path, serve: Serve, window: Window) -> None:
    """Taken out: a page with a dot on it, for ever."""
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "events.jsonl").touch()
    one = serve("--dir", "runs")
    window.open(one)
    page = window.page
    page.get_by_role("link", name="a", exact=True).click()
    page.get_by_role("status").filter(has_text="the journal has no whole event yet").wait_for()
    assert window.violations() == []
    shutil.rmtree(tmp_path / "runs" / "a")
    journal(tmp_path / "runs" / "a", started("late", ranks=1))
    page.get_by_role("heading", name="late").wait_for()
    page.get_by_role("link", name="All jobs").wait_for()


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The address of another site: pages of a server of its own."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text(
        "<!doctype html><title>another site</title><link rel=icon href=data:,>"
    )
    handler = functools.partial(Silent, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_wrong_token_wrong_host_and_another_site_are_refused(
    job: FtJob, serve: Serve, window: Window, elsewhere: str
) -> None:
    """rebound.example is a name of another site that means 127.0.0.1. Without the look at `host` its page is served."""
    start(job)
    job.wait_step(3)
    one = serve("--dir", job.home)
    page = window.page
    window.expected = ("status of 403", "net::ERR_FAILED", "net::ERR_BLOCKED_BY_RESPONSE.NotSameOrigin")
    page.goto(f"{one.at}?token=wrong")
    assert "the token is missing or wrong" in page.inner_text("body")
    page.goto(f"http://rebound.example:{one.port}/?token={one.token}")
    assert "is not served under the name" in page.inner_text("body")
    window.open(one)
    page.goto(elsewhere)
    target = f"{one.at}run/{job.run_dir.name}/do"
    for mode in ("no-cors", "cors"):
        sent = page.evaluate(
            f"""fetch({json.dumps(target)}, {{method: "POST", mode: "{mode}", credentials: "include",
                body: JSON.stringify({{do: "stop"}})}}).then((r) => r.status, () => "refused")"""
        )
        assert sent in (0, "refused"), "the page of another site reads no answer"
    assert all("CORS" in complaint for complaint in window.complaints)
    window.complaints.clear()
    page.goto(one.at)
    page.locator("tr", has_text=job.job_id).filter(has_text="running").wait_for()
    assert not job.events("stop_requested"), "and the job has heard nothing"
    end(job)


def test_a_hundred_windows_are_told_at_once(job: FtJob, serve: Serve, window: Window) -> None:
    """Ninety-nine of them are readers without a window: what they cost is what counts."""
    start(job, HELD="1")
    job.wait_step(3)
    one = serve(job.run_dir)
    window.open(one)
    path = f"{one.at}run/{job.run_dir.name}/news"
    told: list[bool] = []
    ready = threading.Barrier(100)

    def read() -> None:
        with httpx.Client(timeout=90, trust_env=False, cookies=cookies) as client, client.stream("GET", path) as answer:
            messages = news(answer)
            next(messages)
            ready.wait(90)
            told.append(any(parts.get("incidents") for parts in messages if "incidents" in parts))

    with one.client() as client:
        cookies = dict(client.cookies)
    readers = [threading.Thread(target=read) for _ in range(99)]
    for reader in readers:
        reader.start()
    ready.wait(90)
    os.kill(job.pids()[1], signal.SIGKILL)
    window.page.locator(".incident", has_text="was killed by SIGKILL").wait_for()
    for reader in readers:
        reader.join(90)
    assert told == [True] * 99
    end(job)
