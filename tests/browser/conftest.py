"""A real browser, offline: Debian's Chromium, driven by playwright. Skipped where one of them is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

for needed in ("playwright.sync_api", "axe_playwright_python", "starlette", "uvicorn", "httpx"):
    pytest.importorskip(needed, reason=f"{needed} is not installed (make browser)")

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402
from tests.support.dashboards import Dashboard  # noqa: E402
from tests.support.waiting import DEADLINE  # noqa: E402

CHROMIUM = shutil.which("chromium")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP rebound.example 127.0.0.1",
)  # fmt: skip
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}  # pixels


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="there is no chromium: `apt-get install chromium`"))


class Window:
    """A window of the browser. What its pages complain of is noted."""

    def __init__(self, page: Page) -> None:
        self.page, self.complaints = page, list[str]()
        self.expected: tuple[str, ...] = ()
        """parts of complaints that a test brings about"""
        page.set_default_timeout(DEADLINE * 1000)
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(expected in text for expected in self.expected):
            self.complaints.append(text)

    def open(self, dashboard: Dashboard, path: str = "") -> None:
        """Open the dashboard's link, or that of one of its pages; wait until the page is live."""
        self.page.goto(f"{dashboard.at}{path}?token={dashboard.token}")
        self.page.get_by_role("status").get_by_text("live", exact=True).or_(
            self.page.locator("#connection.fine", has_text="live")
        ).wait_for()

    def violations(self) -> list[str]:
        """What axe-core finds against the rules for people who see little, or use a keyboard or a reader."""
        found: list[str] = []
        for size in (PHONE, WIDE):
            self.page.set_viewport_size(size)  # type: ignore[arg-type]
            for scheme in ("light", "dark"):
                self.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                for violation in Axe().run(self.page, options=RULES).response["violations"]:
                    nodes = violation["nodes"]
                    found += [f"{size['width']} {scheme} {violation['id']}: {node['html']}" for node in nodes]
            if self.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{size['width']}: the page is wider than the window")
        self.page.emulate_media(color_scheme="light")
        return found

    def picture(self, name: str, **how: Any) -> None:
        """A screenshot for the docs, where FT_PICTURES names a folder for them, as `make pictures` does."""
        if folder := os.environ.get("FT_PICTURES"):
            self.page.screenshot(path=Path(folder) / name, **how)


@pytest.fixture
def window() -> Iterator[Window]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        window = Window(browser.new_page(viewport=WIDE))
        yield window
        browser.close()
        assert window.complaints == []


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Dashboard]]:
    """Starts a dashboard."""
    found: list[Dashboard] = []

    def start(*words: str | Path, within: Sequence[str] = ()) -> Dashboard:
        found.append(Dashboard(tmp_path, *words, within=within))
        return found[-1]

    yield start
    for one in found:
        one.close()
