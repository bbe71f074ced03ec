"""`ftctl dashboard` on real jobs and bad run dirs, asked as a browser asks. The browser itself: tests/browser."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.ctl import ftctl, journal, start, started
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

pytest.importorskip("starlette", reason="Starlette is not installed (pip install 'ftlaunch[dashboard]')")
pytest.importorskip("uvicorn", reason="Uvicorn is not installed (pip install 'ftlaunch[dashboard]')")
httpx = pytest.importorskip("httpx", reason="HTTPX is not installed (pip install httpx)")

from tests.support.dashboards import Dashboard, news, order, write_token  # noqa: E402

pytestmark = pytest.mark.long

TOKEN = "a-token_that-is-long.enough~0"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[Dashboard]]:
    """Dashboards to be ended with the test."""
    found: list[Dashboard] = []
    yield found
    for one in found:
        one.close()


def old_job(run_dir: Path, job_id: str = "j") -> Path:
    return journal(run_dir, started(job_id, ranks=1), {"event": "job_finished", "code": 0, "restarts": 0})


def test_a_dead_rank_is_told_without_asking_again(job: FtJob, opened: list[Dashboard]) -> None:
    start(job, HELD="1")
    job.wait_step(3)
    opened.append(one := Dashboard(job.home, job.run_dir))
    with one.client() as client:
        assert client.get("").text.count("<script") >= 2, "the page of the job itself"
        with client.stream("GET", f"run/{job.run_dir.name}/news") as response:
            messages = news(response)
            first = next(messages)
            assert first["live"]["state"] == "running"
            assert first["incidents"] == []
            os.kill(job.pids()[1], signal.SIGKILL)
            told = next(parts for parts in messages if parts.get("incidents"))
            assert "was killed by SIGKILL" in told["incidents"][0]["sentence"]
            assert "command" not in json.dumps(told["live"])
    job.supervisor.send_signal(signal.SIGTERM)
    job.wait()


def test_stop_is_journalled_with_the_name_of_who_asked(job: FtJob, opened: list[Dashboard]) -> None:
    start(job)
    job.wait_step(3)
    opened.append(one := Dashboard(job.home, job.run_dir))
    with one.client() as client:
        at = f"run/{job.run_dir.name}/do"
        answer = order(client, at, do="drain", node="0")
        assert answer.status_code == 409
        assert "cannot do that: known are `save`, `status` and `stop`" in answer.json()["error"]
        assert "is asked to stop" in order(client, at, do="stop").json()["done"]
        job.wait()
        assert job.events("stop_requested")[0]["by"].startswith("dashboard of ")
        assert job.events("stop_requested")[0]["by"].endswith(", asked from 127.0.0.1")
        answer = order(client, at, do="stop")
        assert (answer.status_code, "the job is not running: stopped" in answer.json()["error"]) == (409, True)


@pytest.mark.slow
def test_a_checkpoint_is_made_when_a_browser_asks_for_one(job: FtJob, opened: list[Dashboard]) -> None:
    """A storage interval far away is no hindrance: its announced step was, before requests moved it."""
    job.start("--storage-interval", "1000000", "--checkpoint-dir", str(job.home / "ckpt"),
              args=("--out", str(job.out), "--steps", "1000000", "--step-time", "0.005"))  # fmt: skip
    job.wait_step(3)
    opened.append(one := Dashboard(job.home, job.run_dir))
    with one.client() as client:
        assert "asked for" in order(client, f"run/{job.run_dir.name}/do", do="save").json()["done"]
    saved = job.wait_event("checkpoint_committed")
    assert saved["why"] == "request"
    assert job.wait_event("save_requested")["by"].startswith("dashboard of ")
    assert job.supervisor.poll() is None
    job.supervisor.send_signal(signal.SIGTERM)
    job.wait()
    assert [event["why"] for event in job.events("checkpoint_committed")] == ["request", "stop"]


def test_a_rank_that_has_not_attached_cannot_be_saved(job: FtJob, opened: list[Dashboard]) -> None:
    start(job, LATE="1000")
    job.wait_event("attempt_started")
    opened.append(one := Dashboard(job.home, job.run_dir))
    with one.client() as client:
        answer = order(client, f"run/{job.run_dir.name}/do", do="save")
    assert "cannot save: not all ranks have attached" in answer.json()["error"]
    assert not job.events("save_requested")


def test_a_run_dir_that_is_removed_keeps_its_last_state(tmp_path: Path, opened: list[Dashboard]) -> None:
    run_dir = old_job(tmp_path / "runs" / "a")
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    with one.client() as client, client.stream("GET", "run/a/news") as response:
        messages = news(response)
        assert next(messages)["live"]["state"] == "done"
        shutil.rmtree(run_dir)
        told = next(messages)
        assert told["live"]["state"] == "gone"
        assert "no such file or directory" in told["live"]["sentence"]
        assert not {"job", "incidents"} & told.keys(), "the page stays as it was"
        assert "job_finished" not in client.get("run/a/").text
        assert client.get("run/a/").status_code == 200, "whoever reloads it sees the last state, too"
        assert client.get("run/b/").status_code == 404


def test_a_name_of_a_job_that_is_html_stays_text(tmp_path: Path, opened: list[Dashboard]) -> None:
    evil = "</script><script>alert(1)</script>\x1b[31m"
    old_job(tmp_path / "runs" / "<img src=x onerror=alert(1)>", evil)
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    with one.client() as client:
        page = client.get("run/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E/")
        assert page.status_code == 200
        assert "alert(1)</script>" not in page.text
        with client.stream("GET", "news") as response:
            assert next(news(response))["rows"][0]["job_id"].startswith("</script><script>"), "JSON, which becomes text"
            assert response.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("path", ["", "news", "run/a/", "run/a/news", "run/a/nodes", "run/a/live.js", "index.js", "x"])
def test_without_the_token_nothing_is_told(tmp_path: Path, opened: list[Dashboard], path: str) -> None:
    old_job(tmp_path / "runs" / "a")
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    for client in (
        httpx.Client(base_url=one.at, trust_env=False),
        httpx.Client(base_url=one.at, trust_env=False, params={"token": "wrong"}),
        httpx.Client(base_url=one.at, trust_env=False, cookies={"ftlaunch": one.token or ""}),
    ):
        with client:
            refused = client.get(path)
            assert refused.status_code == 403
            assert refused.text == (
                "ftlaunch dashboard: refused: the token is missing or wrong: open the link that `ftctl dashboard` has"
                " printed.\n"
            )
            assert "set-cookie" not in refused.headers


def test_another_host_or_site_is_refused_with_the_token(tmp_path: Path, opened: list[Dashboard]) -> None:
    old_job(tmp_path / "runs" / "a")
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    with one.client() as client:
        for headers, why in (
            ({"host": "evil.example"}, "is not served under the name `evil.example`"),
            ({"origin": "http://evil.example"}, "a page of another site"),
        ):
            refused = client.get("run/a/", headers=headers)
            assert (refused.status_code, why in refused.text, refused.text.count("\n")) == (403, True, 1)
        assert client.post("run/a/do", json={"do": "stop"}).status_code == 403
        plain = client.post("run/a/do", content=b'{"do": "stop"}', headers={"origin": one.at.rstrip("/")})
        assert plain.status_code == 415, "what a form of another site could send"
        for name in ("%2e%2e", "..%2f..%2fetc", "a%2f..%2fa", "%00"):
            assert client.get(f"run/{name}/").status_code == 404


def test_the_token_is_in_the_link_once_and_then_in_a_cookie(tmp_path: Path, opened: list[Dashboard]) -> None:
    old_job(tmp_path / "runs" / "a")
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    answer = httpx.get(f"{one.at}run/a/?token={one.token}&x=%3Cb%3E", trust_env=False)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert (one.token or "?") not in answer.text
    assert "<b>" not in answer.text
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_another_address_wants_a_token_of_the_users_own(tmp_path: Path, opened: list[Dashboard]) -> None:
    old_job(tmp_path / "runs" / "a")
    words: list[tuple[list[Any], str]] = [
        (["--bind", "0.0.0.0"], "cannot listen on 0.0.0.0: other machines reach it, and a token of your own is needed"),
        (["--token-file", tmp_path / "none"], "cannot read the token"),
        (["--token-file", write_token(tmp_path / "open", TOKEN, 0o640)], "others can read or change it"),
        (["--token-file", write_token(tmp_path / "short", "short")], "at least 20 letters"),
        (["--token-file", write_token(tmp_path / "odd", "a;b=c " * 9)], "at least 20 letters"),
        (["--bind", "192.0.2.1", "--token-file", write_token(tmp_path / "t", TOKEN)], "cannot listen on 192.0.2.1"),
        (["--dir", "runs", "a"], "--dir and RUN exclude each other"),
    ]
    for given, why in words:
        code, out, err = ftctl("dashboard", *given, cwd=tmp_path)
        assert (code, why in err, err.count("\n"), out) == (2 if "a" in given else 1, True, 1, ""), err
    opened.append(one := Dashboard(tmp_path, "--dir", "runs", "--bind", "0.0.0.0", "--token-file", tmp_path / "t"))
    wait_for(lambda: "this traffic is not encrypted" in one.said, "the warning")
    assert TOKEN not in one.said
    answer = httpx.get(f"http://127.0.0.1:{one.port}/?token={TOKEN}", trust_env=False)
    assert answer.status_code == 200


def test_a_port_that_is_taken_and_the_end_by_ctrl_c(tmp_path: Path, opened: list[Dashboard]) -> None:
    old_job(tmp_path / "runs" / "a")
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    code, _, err = ftctl("dashboard", "--port", one.port, cwd=tmp_path)
    assert (code, err) == (1, f"ftctl: cannot listen on 127.0.0.1 port {one.port}: address already in use\n")
    with one.client() as client, client.stream("GET", "news") as response:
        next(news(response))
        assert one.close() in (0, -signal.SIGINT, 130), "also where a browser listens"
    assert "Traceback" not in one.said


def test_without_the_extra_one_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, out, err = ftctl("dashboard", cwd=tmp_path)
    assert (code, out) == (1, "")
    assert err == "ftctl: cannot serve a dashboard: uvicorn is missing; `pip install 'ftlaunch[dashboard]'`\n"


def test_who_asked_is_whose_connection_it_is(job: FtJob, opened: list[Dashboard]) -> None:
    """Taken out (proxy_headers=False): `by` was what the header said."""
    start(job)
    job.wait_step(3)
    opened.append(one := Dashboard(job.home, job.run_dir))
    with one.client() as client:
        forged = {"x-forwarded-for": "10.9.9.9-boss<b>", "x-forwarded-proto": "https", "forwarded": "for=10.9.9.9"}
        client.headers.update(forged)
        assert order(client, f"run/{job.run_dir.name}/do", do="stop").status_code == 200
    job.wait()
    assert job.events("stop_requested")[0]["by"] == f"dashboard of {getpass.getuser()}, asked from 127.0.0.1"


def test_cookies_of_other_servers_lock_nobody_out(tmp_path: Path, opened: list[Dashboard]) -> None:
    """Taken out (a parser that gives up at the first odd one): 403 with the right token."""
    old_job(tmp_path / "runs" / "a")
    opened.append(one := Dashboard(tmp_path, "--dir", "runs"))
    with one.client() as client:
        ours = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    for odd in ('prefs={"a":1}', "x=[1]", "a b=c", "=", "caf\xe9=1", "a=b=c", ",;,"):
        headers = {"cookie": f"{odd}; {ours}; {odd}".encode("latin-1")}
        assert httpx.get(f"{one.at}run/a/", headers=headers, trust_env=False).status_code == 200, odd
