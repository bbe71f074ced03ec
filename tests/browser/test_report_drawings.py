"""The drawings of report.html in a real browser: what they show at any scale, by mouse and keyboard, and as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.browser.test_report_page import a_run, assert_shows
from tests.support.browser import DESKTOP, PHONE, BrowserPages, browser_page
from tests.support.run_dirs import at, failed, run_dir, started

from ftlaunch.views.report_page.data import page_data
from ftlaunch.views.report_page.render import write_page

__all__ = ["browser_page"]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return a_run(tmp_path)


def test_a_mark_is_reached_by_the_keyboard_and_opens_its_incident(report: Path, browser_page: BrowserPages) -> None:
    """Taken out (marks were paths that only a mouse could click): there was no link."""
    page = browser_page(report.as_uri())
    page.locator("#drawings").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')").startswith("incident 1, ")
    page.keyboard.press("+")  # the drawing is made anew: the focus stays on the same mark
    assert_shows(page, ", 15 min 0 s")
    page.keyboard.press("0")
    assert_shows(page, "all of it")
    page.keyboard.press("Enter")
    page.wait_for_selector("#incident-1[open]")
    assert page.evaluate("() => document.activeElement.parentNode.id") == "incident-1"


def test_marks_that_are_one_say_how_many_they_are(tmp_path: Path, browser_page: BrowserPages) -> None:
    """Taken out: of incidents that were close to each other one was drawn, and nothing told of the others."""
    close = [event for n in range(5) for event in failed(20_000 + 20 * n, n, sentence=f"failure {n}")]
    made = run_dir(tmp_path, [*started(), *close, at(40_000, "job_finished", code=0)])
    write_page(made, made / "report.html")
    page = browser_page((made / "report.html").as_uri())
    assert page.locator("#timeline a.mark").count() == 1
    assert page.locator("#timeline a.mark text").text_content() == "5"
    assert page.locator("#timeline a.mark").get_attribute("aria-label").startswith("5 incidents here, zoom in")
    page.locator("#timeline").hover(position={"x": 620, "y": 10})
    for _ in range(7):
        page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function("() => document.querySelectorAll('#timeline a.mark').length === 5")


def green(page: Any) -> float:
    """Which share of the lane of time has the colour of time that trained. Its boxes overlap by 0.05 pixels."""
    return page.evaluate("""() => {
      const path = document.querySelector("#timeline path.c0").getAttribute("d").match(/h[\\d.]+v[\\d.]+/g);
      const area = path.reduce((sum, box) => sum + box.slice(1).split("v").reduce((a, b) => (a - 0.05) * b), 0);
      return area / (document.querySelector("#timeline .lane").getBBox().width * 22);
    }""")


def test_the_lane_of_time_shows_the_mix_where_a_pixel_has_several_classes(
    tmp_path: Path, browser_page: BrowserPages
) -> None:
    """Taken out (the worst class took the pixel): 2,000 failures made eleven hours red, of which most had trained."""
    events = [event for n in range(2000) for event in failed(60 + 20 * n, n)]
    made = run_dir(tmp_path, [*started(), *events, at(40_060, "job_finished", code=0)])
    write_page(made, made / "report.html")
    page = browser_page((made / "report.html").as_uri())
    assert_shows(page, "all of it")
    shares = {row["name"]: row["share"] for row in page_data(made)["ledger"]}  # which steps count is not seen in it
    assert green(page) == pytest.approx(shares["useful"] + shares["lost"], abs=0.01)


def test_the_phases_of_a_restart_are_drawn_when_there_is_room(report: Path, browser_page: BrowserPages) -> None:
    page = browser_page(report.as_uri())
    page.locator("#incident-2 summary").click()
    assert_shows(page, "loading 7.0 s", "#incident-2")
    assert page.locator("#timeline .p4").count() == 0
    page.evaluate("() => window.scrollTo(0, 0)")
    for _ in range(5):
        page.locator("#drawings").focus()
        page.keyboard.press("+")
    assert_shows(page, ", 56 s")
    assert page.locator("#timeline .p4").count() == 2  # one in the lane, one in the legend


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_tables_tell_what_the_drawings_show(report: Path, browser_page: BrowserPages, size: Any) -> None:
    page = browser_page(report.as_uri(), size=size)
    for table, told in (("times", "useful"), ("loss", "rank 2"), ("step", "rank 0"), ("attempts", "6 min 39 s")):
        assert page.locator(f"#{table}-table tbody tr").count() == 0  # it is made when it is opened
        page.locator(f"#{table}-table summary").click()
        assert_shows(page, told, f"#{table}-table")
    assert 50 < page.locator("#loss-table tbody tr").count() <= 100
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_a_table_says_what_it_leaves_out(tmp_path: Path, browser_page: BrowserPages) -> None:
    events = [event for n in range(1500) for event in failed(60 + 20 * n, n)]
    made = run_dir(tmp_path, [*started(), *events])
    write_page(made, made / "report.html")
    page = browser_page((made / "report.html").as_uri())
    page.locator("#attempts-table summary").click()
    assert_shows(page, "The newest 1,000 rows of 1,501.", "#attempts-table .cut")
