"""Pages in a real browser: Debian's Chromium without a network, driven by Playwright.

A test is skipped without either.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
DESKTOP, PHONE = (1280, 900), (390, 844)  # pixels


class BrowserPages:
    """Opens pages, and collects what goes wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.errors: list[str] = []
        """exceptions in scripts, errors on the console, and refused content"""

    def __call__(
        self, address: str, *, size: tuple[int, int] = DESKTOP, dark: bool = False, offline: bool = True, **more: Any
    ) -> Page:
        """Open an address in a new window.

        Args:
            address: the URL.
            size: width and height of the window in pixels.
            dark: whether the system prefers dark colours.
            offline: whether the window has no network.
            more: further options of Playwright's context.
        """
        scheme: Any = "dark" if dark else "light"
        viewport: Any = {"width": size[0], "height": size[1]}
        context = self._browser.new_context(viewport=viewport, color_scheme=scheme, offline=offline, **more)
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.goto(address)
        return page


@pytest.fixture
def browser_page() -> Iterator[BrowserPages]:
    """Yield a function that opens pages: `browser_page(path.as_uri(), size=PHONE, dark=True)`.

    An error in any of the pages fails the test.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (make browser)")
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM}: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(QUIET))
        pages = BrowserPages(browser)
        yield pages
        browser.close()
    assert pages.errors == []
