"""What the pages tell people to type is typed, in an empty directory, and shows what the pages show.

A block that cannot run here says so in a comment above it, with the reason (tests/support/console_blocks.py).
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from tests.support.console import Console
from tests.support.console_blocks import ROOT, blocks
from tests.support.leftovers import mark

PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if blocks(page)]
NEEDS = {"lightning.md": "lightning", "transformers.md": "transformers"}
_HOLE = re.compile(r"\\?<\w+\\?>")
RUN = [page for page in PAGES if any(block.commands and not block.reason for block in blocks(page))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page_shows_what_happens(page: Path, tmp_path: Path) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    console = Console(tmp_path, f"FT_TEST=console-{mark()}-{uuid.uuid4().hex[:8]}")
    try:
        assert console.follow(page) > 0
        assert [file for run_dir in console.run_dirs for file in undescribed(run_dir)] == []
    finally:
        console.dispose()


def undescribed(run_dir: Path) -> list[str]:
    """The files of a run dir that docs/reference/files.md does not describe."""
    table = (ROOT / "docs/reference/files.md").read_text(encoding="utf-8")
    run, _, rest = table.partition("## The checkpoint directory")
    rows = [*_named(run), *(f"checkpoints/{name}" for name in _named(rest.partition("## Memory")[0]))]
    rows.remove("checkpoints/")
    known = [_HOLE.sub("[^/]+", re.escape(row)).replace(r"\*", ".*") + ".*" * row.endswith("/") for row in rows]
    files = [file.relative_to(run_dir).as_posix() for file in run_dir.rglob("*") if file.is_file()]
    return [file for file in files if not any(re.fullmatch(pattern, file) for pattern in known)]


def _named(text: str) -> list[str]:
    """The first cells of its tables."""
    return re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE)


def test_a_file_that_is_not_described_is_found(tmp_path: Path) -> None:
    for name in ("events.jsonl", "checkpoints/iteration_0000010/common.json", "logs/attempt_2/rank_7.log", "spare.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "checkpoints/iteration_0000010/unknown").touch()
    assert sorted(undescribed(tmp_path)) == ["checkpoints/iteration_0000010/unknown", "spare.txt"]
