"""What the pages tell people to type is typed, in an empty directory, and shows what the pages show.

A block that cannot run here says so in a comment above it, with the reason (tests/support/console_blocks.py).
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.support.console import Console
from tests.support.console_blocks import ROOT, blocks
from tests.support.files_page import left, undescribed
from tests.support.leftovers import mark

PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if blocks(page)]
NEEDS = {"dashboard.md": "starlette", "lightning.md": "lightning", "transformers.md": "transformers"}
IN_SWEEP = (
    *("tutorial.md", "before-a-long-run.md"),  # they take minutes
    *("one-machine.md", "transformers.md", "lightning.md", "dashboard.md"),
)
RUN = [page for page in PAGES if any(block.commands and not block.reason for block in blocks(page))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


MARKED = [pytest.param(page, id=name_of(page), marks=pytest.mark.slow if page.name in IN_SWEEP else ()) for page in RUN]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", MARKED)
def test_a_page_shows_what_happens(page: Path, tmp_path: Path) -> None:
    if page.name in NEEDS:
        needed = NEEDS[page.name]
        pytest.importorskip(needed, reason=f"{needed} is not installed (make frameworks, make browser)")
    console = Console(tmp_path, f"FT_TEST=console-{mark()}-{uuid.uuid4().hex[:8]}")
    try:
        assert console.follow(page) > 0
        if page.name == "tutorial.md":
            report = (console.work / "runs/tutorial-killed/report.html").read_text(encoding="utf-8")
            assert "rank 1 was killed by SIGKILL" in report
        assert [file for run_dir in console.run_dirs for file in undescribed(left(run_dir))] == []
    finally:
        console.dispose()
