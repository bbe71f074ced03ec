"""The dashboard and report.html on a machine without a network: a namespace that has the loopback device alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Request, sync_playwright
from tests.browser.conftest import CHROMIUM, QUIET, Window
from tests.support.ctl import journal, started
from tests.support.dashboards import Dashboard

from ftlaunch.views.report_page.render import write_page

ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""becomes the command behind it, with a loopback device and no other"""


def why_not() -> str:
    """Why no such namespace can be made here; empty where one can."""
    try:
        done = subprocess.run([*ALONE, "ip", "-oneline", "link"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    return "" if done.returncode == 0 and done.stdout.count("\n") == 1 else f"{done.stderr.strip()}{done.stdout}"


@pytest.mark.skipif(
    bool(why_not()), reason=f"no network namespace can be made here: {why_not()}; run as root (Debian: iproute2)"
)
def test_nothing_is_missed_without_a_network(tmp_path: Path, serve: Callable[..., Dashboard]) -> None:
    """Whatever a page asks for is asked of the dashboard; a font or script from elsewhere would show here."""
    incident = {"event": "incident", "rank": 0, "kind": "killed", "sentence": "rank 0 was killed", "verdict": "restart"}
    run_dir = journal(tmp_path / "runs" / "a", started(ranks=1), incident)
    write_page(run_dir, tmp_path / "report.html")
    one = serve("--dir", "runs", within=ALONE)
    browser_there = tmp_path / "chromium"
    browser_there.write_text(f'#!/bin/sh\nexec nsenter --target {one.process.pid} --net {CHROMIUM} "$@"\n')
    browser_there.chmod(0o755)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_there, args=QUIET)
        window, asked = watched(browser)
        window.open(one)
        window.page.get_by_role("link", name="a", exact=True).click()
        window.page.locator(".incident", has_text="rank 0 was killed").wait_for()
        assert asked and all(url.startswith((one.at, "data:")) for url in asked), asked
        report, asked_by_report = watched(browser)  # the dashboard's page goes on asking for news
        report.page.goto((tmp_path / "report.html").as_uri())
        report.page.locator(".incident", has_text="rank 0 was killed").wait_for()
        assert asked_by_report and all(url.startswith(("file:", "data:")) for url in asked_by_report), asked_by_report
        report.expected = ("net::ERR_",)
        with pytest.raises(Exception, match="net::ERR_"):
            report.page.goto("http://192.0.2.1/", timeout=5000)
        browser.close()
    assert [*window.complaints, *report.complaints] == []


def watched(browser: Browser) -> tuple[Window, list[str]]:
    """A page, and what it asks for."""
    window = Window(browser.new_page())
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    window.page.on("request", note)
    return window, asked
