"""The documentation as a site: built strictly, it holds all that its pages load, and is searched without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("material", reason="mkdocs-material is not installed: make docs")

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}


def build(home: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)],
        cwd=home, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Read(HTMLParser):
    """What a page loads, where its links lead, and which anchors it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors |= {name for key in ("id", "name") if (name := given.get(key))}
        if (where := given.get(LOADED.get(tag, ""))) is not None:
            self.loads.append(where)
        if tag == "a" and (where := given.get("href")):
            self.links.append(where)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Read]:
    return {page: Read(page) for page in site.rglob("*.html")}


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site: Path, pages: dict[Path, Read]) -> None:
    assert len(pages) > 150
    foreign = {where for read in pages.values() for where in read.loads if urlsplit(where).netloc}
    styles = {
        where
        for style in site.rglob("*.css")
        for where in re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", style.read_text(encoding="utf-8"))
        if urlsplit(where).netloc
    }
    assert foreign | styles == set()
    assert not any('class="mermaid"' in page.read_text(encoding="utf-8") for page in pages), "it is fetched when shown"


@pytest.mark.long
def test_every_link_within_the_site_leads_somewhere(site: Path, pages: dict[Path, Read]) -> None:
    broken = []
    for page, read in pages.items():
        for link in (*read.links, *read.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].anchors if target in pages else set()
            if not target.exists() or (parts.fragment and target in pages and unquote(parts.fragment) not in known):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.long
def test_what_lies_outside_of_docs_is_in_the_site(site: Path) -> None:
    assert "another rank has not come" in (site / "source/configs/fault_rules.yaml.html").read_text()
    assert "keeps a PyTorch training job alive" in (site / "index.html").read_text()


@pytest.mark.long
def test_the_index_of_the_search_is_in_the_site(site: Path) -> None:
    index = (site / "search/search_index.js").read_text(encoding="utf-8").removeprefix("var __index = ")
    places = {entry["location"] for entry in json.loads(index)["docs"]}
    assert {"tutorial.html", "troubleshooting.html", "reference/commands.html"} <= places
    assert not any(place.startswith("source/") for place in places), "files of the source would bury the pages"


# --- what is wrong ends the build ---------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The pages and what they link to, to be changed."""
    home = tmp_path / "clone"
    (home / "scripts").mkdir(parents=True)
    shutil.copytree(ROOT / "docs", home / "docs")
    shutil.copytree(ROOT / "scripts/docs", home / "scripts/docs")
    for path in ROOT.iterdir():
        if path.name not in ("docs", "scripts", "build", ".git") and not path.name.startswith(".venv"):
            (home / path.name).symlink_to(path)
    for path in (ROOT / "scripts").iterdir():
        if path.name != "docs":
            (home / "scripts" / path.name).symlink_to(path)
    return home


@pytest.mark.slow
def test_a_broken_link_or_anchor_ends_the_build(clone: Path, tmp_path: Path) -> None:
    with (clone / "docs/api.md").open("a") as page:
        page.write("\n[gone](guide/gone.md) and [nowhere](guide/spec.md#nowhere-at-all)\n")
    done = build(clone, tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr
    assert "nowhere-at-all" in done.stderr


@pytest.mark.slow
def test_a_guide_that_no_section_names_appears(clone: Path, tmp_path: Path) -> None:
    (clone / "docs/guide/a-new-one.md").write_text("# A new one\n\nSee [the table](../../configs/fault_rules.yaml).\n")
    done = build(clone, tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "More guides" in (tmp_path / "site/guide/a-new-one.html").read_text()


# --- in a browser -------------------------------------------------------------------------------------------


@pytest.fixture
def requests_of(site: Path) -> Iterator[list[str]]:
    """Search the site, opened from its files; every address that the browser has asked for."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (make browser)")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM} (apt-get install chromium)")
    quiet = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
             "disable-component-update", "disable-sync")  # fmt: skip
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=[f"--{word}" for word in quiet])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.fill("input.md-search__input", "quarantine")
        page.wait_for_selector(".md-search-result__item", timeout=60_000)
        browser.close()
    yield asked


@pytest.mark.browser
def test_the_search_works_from_files_and_asks_no_other_host(requests_of: list[str]) -> None:
    assert any("search_index.js" in address for address in requests_of)
    assert [address for address in requests_of if not address.startswith(("file:", "data:", "blob:"))] == []
