"""The server's answers where a look takes long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_dirs import run_dir, started

pytest.importorskip("starlette", reason="Starlette is not installed (pip install 'ftlaunch[dashboard]')")
pytest.importorskip("uvicorn", reason="Uvicorn is not installed (pip install 'ftlaunch[dashboard]')")
httpx = pytest.importorskip("httpx", reason="HTTPX is not installed (pip install httpx)")

from ftlaunch.views.dashboard import runs_shown, server  # noqa: E402
from ftlaunch.views.dashboard.access import Access  # noqa: E402
from ftlaunch.views.dashboard.commands import Commands  # noqa: E402
from ftlaunch.views.dashboard.live_run import LiveRun  # noqa: E402
from ftlaunch.views.dashboard.runs_shown import RunsShown  # noqa: E402

TOKEN = "a-token-that-is-long"


def client_of(tmp_path: Path) -> Any:
    """A browser with the token, of a dashboard of one run dir."""
    access = Access(TOKEN, frozenset({"localhost"}), beyond=False)
    made = run_dir(tmp_path, started())
    app = server.application(access, RunsShown(made, every=False), Commands(lambda *_: {}, "alice"))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://localhost", cookies={access.cookie: TOKEN}
    )


class LongRun(LiveRun):
    """One whose journal takes until `read` to be read."""

    read = threading.Event()

    def update(self) -> Mapping[str, Any]:
        assert self.read.wait(60)
        return super().update()


def test_a_browser_does_not_wait_for_a_long_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out: a blank window for a minute, and after six reloads no thread was left for any other page."""
    monkeypatch.setattr(server, "PAGE_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(runs_shown, "LiveRun", LongRun)

    async def scene() -> None:
        async with client_of(tmp_path) as client:
            for _ in range(20):
                answer = await asyncio.wait_for(client.get("/run/run/"), 60)
                assert (answer.status_code, "The journal is being read." in answer.text) == (200, True)
            looks = [thread for thread in threading.enumerate() if thread.name.startswith("asyncio")]
            assert len(looks) <= 3, "one looks; the others have listed the directory"
            LongRun.read.set()
            while "No page yet" in (answer := await client.get("/run/run/")).text:
                await asyncio.sleep(0.01)
            assert '"version":1' in answer.text

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("length", "status"),
    [("x", 400), ("-5", 400), ("1.0", 400), ("\u0661".encode(), 400), ("9" * 5000, 413), ("2001", 413), ("", 413),
     ("2", 200)],
)  # fmt: skip
def test_a_length_that_is_none_is_refused(tmp_path: Path, length: str | bytes, status: int) -> None:
    """Taken out: a ValueError of int() ended the request with a traceback on the terminal."""

    async def scene() -> None:
        headers = {"content-type": "application/json", "origin": "http://localhost", "content-length": length}
        async with client_of(tmp_path) as client:
            answer = await client.post("/run/run/do", content=b"{}", headers=headers)
        # The job of this run dir does not run, so that a command that is read has no one to go to.
        assert answer.status_code == (409 if status == 200 else status), answer.text

    asyncio.run(scene())
