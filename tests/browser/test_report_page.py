"""report.html in a real browser, without a network: what people see, and do with keys, wheel and printer.

FT_PICTURES=FOLDER keeps the screenshots; else they go with the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import DESKTOP, PHONE, BrowserPages, browser_page
from tests.support.run_dirs import Timed, at, failed, log, run_dir, started

from ftlaunch.views.report_page.data import page_data
from ftlaunch.views.report_page.render import write_page

__all__ = ["browser_page"]

EVIL = "<img src=x onerror=document.title='pwned'><script>document.title='pwned'</script>"


def a_life(name: str = f"demo {EVIL}") -> list[Timed]:
    """Half an hour with three incidents, losses, checkpoints and two nodes."""
    events = [
        *started(3, job_id=name),
        at(11, "node_joined", node=1, host="node-a", address="10.0.0.1"),
        at(11, "node_joined", node=2, host="node-b", address="10.0.0.2"),
        at(12, "node_placed", node=1, place=0),
    ]
    evil = {"kind": "exception", "sentence": f"rank 1 failed with {EVIL}", "trace": EVIL}
    hang = {"kind": "hang", "cause": "rank 2 is hung", "autopsy": "/r/autopsy/attempt_2"}
    struck = {500.0: failed(500, 240, lost=3, **evil), 900.0: failed(900, 440)}
    struck[1300.0] = failed(1300, 640, rank=2, **hang)
    for tick in range(1, 60):
        now, step = 30.0 * tick, 15 * tick
        loss = [[rank, 9 / (tick + 1) + rank / 10] for rank in range(3)]
        took = [[rank, 2 + (tick * (rank + 3) % 7) / 10] for rank in range(3)]
        for when in [when for when in struck if when <= now]:
            events += struck.pop(when)
        events.append(at(now, "progress", step=step, loss=loss, step_seconds=took, of=None))
        if tick % 10 == 0:
            saved = {"why": "interval", "bytes": 1 << 30, "seconds": 12.0, "health": "normal"}
            events.append(at(now + 13, "checkpoint_committed", step=step, **saved))
    return [*events, at(1800, "job_finished", code=0, restarts=3)]


def a_run(home: Path, name: str = f"demo {EVIL}") -> Path:
    made = run_dir(home, a_life(name))
    log(made, 0, 1, f"line one\n{EVIL}\n")
    folder = made / "autopsy/attempt_2"
    folder.mkdir(parents=True)
    (folder / "verdict.txt").write_text("rank 2 is hung\n")
    waits = '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'
    for rank in range(3):
        own = f'  File "/job/{"data" if rank == 2 else "train"}.py", line 7 in work\n'
        text = "Current thread 0x00007f (most recent call first):\n" + ("" if rank == 2 else waits) + own
        (folder / f"rank_{rank}.stack.txt").write_text(text)
        (folder / f"rank_{rank}.proc.json").write_text("{}")
    write_page(made, made / "report.html")
    return made / "report.html"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return a_run(tmp_path)


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("FT_PICTURES", tmp_path / "shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def assert_shows(page: Any, text: str, where: str = "#window") -> None:
    """Wait until it stands there; `#window` says which part of the time is drawn."""
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (make browser)").expect(
        page.locator(where)
    ).to_contain_text(text)


LOOKS = [("desktop", DESKTOP, False), ("phone", PHONE, False), ("dark", DESKTOP, True)]


@pytest.mark.parametrize(("name", "size", "dark"), LOOKS)
def test_it_is_seen_as_it_was(
    report: Path, shots: Path, browser_page: BrowserPages, name: str, size: Any, dark: bool
) -> None:
    page = browser_page(report.as_uri(), size=size, dark=dark)
    assert page.locator("h1").inner_text() == f"demo {EVIL}"
    assert page.title() != "pwned"
    assert page.locator(".incident").count() == 3
    hang, _, evil = page.locator(".incident").all()
    hang.locator("summary").click()
    assert_shows(page, "ranks 0, 1 wait in all_reduce", "#incident-3")
    assert hang.locator(".graph .culprit").count() == 1
    evil.locator("summary").click()
    assert_shows(page, "line one", "#incident-1")
    assert f"line one\n{EVIL}" in evil.inner_text()
    assert page.locator("#loss polyline").count() == 3
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=shots / f"{name}.png", full_page=True)


def test_the_picture_of_the_guide(tmp_path: Path, shots: Path, browser_page: BrowserPages) -> None:
    """docs/images/report.png is made here: `make pictures`."""
    page = browser_page(a_run(tmp_path, "demo").as_uri(), size=(1100, 1420))
    assert_shows(page, "all of it")
    page.screenshot(path=shots / "report.png")
    assert (shots / "report.png").stat().st_size < 200_000


def test_it_zooms_by_buttons_wheel_and_keys(report: Path, browser_page: BrowserPages) -> None:
    page = browser_page(report.as_uri())
    assert_shows(page, "all of it")
    assert_shows(page, ", 30 min 0 s")
    page.get_by_role("button", name="Zoom in").click()
    assert_shows(page, ", 15 min 0 s")
    page.locator("#drawings").focus()
    page.keyboard.press("+")
    assert_shows(page, ", 7 min 30 s")
    page.locator("#timeline").hover(position={"x": 400, "y": 20})
    page.mouse.wheel(0, -120)
    assert_shows(page, ", 6 min 0 s")
    page.keyboard.press("0")
    assert_shows(page, "all of it")


AT = "() => [scrollY, document.activeElement.parentNode.id]"


def test_an_update_leaves_what_somebody_is_looking_at(report: Path, browser_page: BrowserPages) -> None:
    """Zoom, open incidents, focus and scroll position stay, and the new incident is there."""
    page = browser_page(report.as_uri())
    page.get_by_role("button", name="Zoom in").click()
    assert_shows(page, ", 15 min 0 s")
    page.locator("#incident-1 summary").click()
    before = page.evaluate(AT)
    assert before[1] == "incident-1"
    drawn = page.locator("#window").inner_text()
    data = page_data(run_dir(report.parents[1], [*a_life()[:-1], *failed(1795, 890, sentence="one more")]))
    page.evaluate("data => window.ftlaunch.update(data)", json.loads(json.dumps(data)))
    assert page.locator(".incident").count() == 4
    assert page.locator("#incident-1").get_attribute("open") is not None
    assert page.locator("#window").inner_text() == drawn
    assert page.evaluate(AT)[1] == before[1]


def test_printed_it_is_open(report: Path, browser_page: BrowserPages) -> None:
    page = browser_page(report.as_uri())
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert "line one" in page.locator("#incident-1").inner_text()
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0


@pytest.mark.parametrize(("name", "size", "dark"), LOOKS)
def test_nothing_stands_in_the_way_of_a_screen_reader(
    report: Path, browser_page: BrowserPages, name: str, size: Any, dark: bool
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed (make browser)"
    )
    page = browser_page(report.as_uri(), size=size, dark=dark, bypass_csp=True)
    page.locator("#open-all").click()
    page.evaluate("() => { for (const one of document.querySelectorAll('details')) one.open = true; }")
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found] == []


def test_printed_on_paper_it_is_open(report: Path, tmp_path: Path, browser_page: BrowserPages) -> None:
    """A real PDF, as the browser prints it: the end of the log, the autopsy and the tables stand in it."""
    if not shutil.which("pdftotext"):
        pytest.skip("needs pdftotext: apt-get install poppler-utils")
    page = browser_page(report.as_uri())
    assert_shows(page, "all of it")
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    text = subprocess.run(["pdftotext", "-layout", tmp_path / "page.pdf", "-"], check=True, capture_output=True).stdout
    words = " ".join(text.decode().split())
    row = "useful lost detecting restarting starting"  # the widest table is whole
    for told in ("line one", "ranks 0, 1 wait in all_reduce", "Steps made again", "Table of the checkpoints", row):
        assert told in words, told


def test_the_end_of_a_log_is_seen(tmp_path: Path, browser_page: BrowserPages) -> None:
    """Taken out: the box showed the first of the lines, and the last ones, which matter most, had to be looked for."""
    made = run_dir(tmp_path, [*started(), *failed(500, 240)])
    log(made, 0, 1, "".join(f"line {n} {'word ' * 20}\n" for n in range(100)))
    write_page(made, made / "report.html")
    page = browser_page((made / "report.html").as_uri(), size=PHONE)
    page.locator("#incident-1 summary").click()
    assert_shows(page, "line 99", "#incident-1 pre")
    page.wait_for_function("""() => {
      const one = document.querySelector("#incident-1 pre");
      return one.scrollTop > 0 && one.scrollHeight - one.clientHeight - one.scrollTop <= 1;
    }""")


def test_a_hang_shows_the_restarts_that_are_left_after_hangs(tmp_path: Path, browser_page: BrowserPages) -> None:
    left = {"restarts_left": 1, "hang_restarts_left": 2}
    events = [*failed(500, 240, kind="hang", **left), *failed(600, 300, **left)]
    made = run_dir(tmp_path, [*started(), *events])
    write_page(made, made / "report.html")
    page = browser_page((made / "report.html").as_uri())
    page.locator("#open-all").click()
    assert_shows(page, "Restarts after hangs left2", "#incident-1")
    assert_shows(page, "Restarts left1", "#incident-2")
    assert "Restarts left1" not in page.locator("#incident-1").text_content()


def test_the_head_says_the_end_once_and_the_zone_of_the_job(report: Path, browser_page: BrowserPages) -> None:
    page = browser_page(report.as_uri(), timezone_id="Europe/Berlin")
    assert page.locator("#ending").inner_text() == "(exit code 0)"
    assert "(GMT+2)" in page.locator("#when").inner_text()  # in September, whenever the page is read
