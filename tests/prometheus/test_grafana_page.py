"""The dashboard, drawn by Grafana's own components with a real Prometheus' answers, in a real browser.

`make grafana-picture` builds the page. FT_PICTURES=FOLDER keeps the picture; else it goes with the test.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import BrowserPages, browser_page
from tests.support.harness import FtJob
from tests.support.prometheus import NO_PROMETHEUS, PROMETHEUS, Prometheus, dashboard, train, url_of
from tests.support.waiting import wait_for

__all__ = ["browser_page"]

BUNDLE = Path(__file__).parents[2] / "build/grafana_page/bundle"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROMETHEUS is None, reason=NO_PROMETHEUS),
    pytest.mark.skipif(not (BUNDLE / "page.js").exists(), reason="the page is not built: `make grafana-picture`"),
]
FAULT = "sigkill 1 600; exception 0 1200"
LAST = 1800  # the step after which it is drawn
COLOURED = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const grey = at => Math.max(...data.slice(at, at + 3)) - Math.min(...data.slice(at, at + 3)) < 60;
    return Array.from({ length: data.length / 4 }, (_, pixel) => 4 * pixel).some(at => !grey(at));
}"""
"""whether something is drawn besides grid and axes, which are grey"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def page_url() -> Iterator[str]:
    """Where the page is served: browsers load no icons from file:."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=BUNDLE)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("FT_PICTURES", tmp_path / "shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def asked(server: Prometheus, job: FtJob, begin: float) -> dict[str, Any]:
    """What the page draws: the job's life since `begin`, a point a second."""
    now = time.time()
    spans = {"__interval": "1s", "__rate_interval": "5s", "__range": f"{now - begin:.0f}s"}
    variables = {"job_id": job.job_id, **spans}
    times = {"from": begin, "to": now, "step": 1}
    return {"dashboard": dashboard(), "prometheus": server.url, "variables": variables, **times}


def look(panel: dict[str, Any], drawn: Any) -> None:
    """Fails where a panel of the dashboard is not drawn as it should be."""
    title = panel["title"]
    drawn.get_by_text(title, exact=True).first.wait_for()
    assert drawn.get_attribute("data-error") is None
    if panel["type"] == "row":
        return
    assert drawn.get_attribute("data-filled") == "true", f"{title}: no data"
    assert drawn.inner_text().strip() != title, f"{title}: neither a value nor a legend"
    if panel["type"] == "timeseries":
        wait_for(lambda: drawn.locator("canvas").evaluate(COLOURED), f"a line in {title}")


def test_every_panel_is_drawn(
    job: FtJob, prometheus: Callable[..., Prometheus], page_url: str, browser_page: BrowserPages, shots: Path
) -> None:
    """docs/images/grafana.png is made here: FT_PICTURES=docs/images."""
    train(job, {"ranks": True}, FAULT=FAULT)
    server, begin = prometheus(url_of(job)), time.time()
    wait_for(lambda: server.query(f"min(ftlaunch_newest_step) > {LAST}"), f"step {LAST} in Prometheus")
    assert [incident["kind"] for incident in job.events("incident")] == ["killed", "exception"], "the faults fired"
    page = browser_page(page_url, size=(1400, 1000), dark=True, offline=False)
    page.evaluate("asked => window.draw(asked)", asked(server, job, begin))
    for panel in dashboard()["panels"]:
        look(panel, page.locator(f'[data-panel="{panel["id"]}"]'))
    page.screenshot(path=shots / "grafana.png", full_page=True)
    assert (shots / "grafana.png").stat().st_size < 300_000
    job.supervisor.terminate()
    job.wait()
