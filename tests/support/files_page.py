"""Compares the files that docs/reference/files.md describes with those that jobs have left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
_HOLE = re.compile(r"\\?<\w+\\?>")


def described() -> dict[str, re.Pattern[str]]:
    """Return the rows of the page: each name, with the pattern of the paths below a run dir that it stands for."""
    page = (ROOT / "docs/reference/files.md").read_text(encoding="utf-8")
    run, _, rest = page.partition("## The checkpoint directory")
    rows = [*_named(run), *(f"checkpoints/{name}" for name in _named(rest.partition("## Memory")[0]))]
    rows.remove("checkpoints/")
    return {row: re.compile(_HOLE.sub("[^/]+", re.escape(row)).replace(r"\*", ".*") + ".*" * row.endswith("/"))
            for row in rows}  # fmt: skip


def left(run_dir: Path) -> list[str]:
    """Return the files of a run dir, without those that are being written."""
    files = (file for file in run_dir.rglob("*") if file.suffix != ".tmp" and file.is_file())
    return sorted(file.relative_to(run_dir).as_posix() for file in files)


def undescribed(files: Iterable[str]) -> list[str]:
    """Return those of some files that the page does not describe. files: paths below a run dir."""
    known = described().values()
    return sorted({file for file in files if not any(pattern.fullmatch(file) for pattern in known)})


def unseen(files: Iterable[str]) -> set[str]:
    """Return the rows of the page that stand for none of some files. files: paths below a run dir."""
    seen = set(files)
    return {row for row, pattern in described().items() if not any(map(pattern.fullmatch, seen))}


def _named(text: str) -> list[str]:
    """Return the first cells of the tables in a text."""
    return re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE)
