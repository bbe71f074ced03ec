"""The files that docs/reference/files.md describes, next to those that jobs have left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
_HOLE = re.compile(r"\\?<\w+\\?>")


def described() -> dict[str, re.Pattern[str]]:
    """The rows of the page: each name as it stands there, and what a path below a run dir must look like to be it."""
    page = (ROOT / "docs/reference/files.md").read_text(encoding="utf-8")
    run, _, rest = page.partition("## The checkpoint directory")
    rows = [*_named(run), *(f"checkpoints/{name}" for name in _named(rest.partition("## Memory")[0]))]
    rows.remove("checkpoints/")
    return {row: re.compile(_HOLE.sub("[^/]+", re.escape(row)).replace(r"\*", ".*") + ".*" * row.endswith("/"))
            for row in rows}  # fmt: skip


def left(run_dir: Path) -> list[str]:
    """The files of a run dir, but for those that are being written."""
    files = (file for file in run_dir.rglob("*") if file.suffix != ".tmp" and file.is_file())
    return sorted(file.relative_to(run_dir).as_posix() for file in files)


def undescribed(files: Iterable[str]) -> list[str]:
    """Those of some files that the page does not describe. files: paths below a run dir."""
    known = described().values()
    return sorted({file for file in files if not any(pattern.fullmatch(file) for pattern in known)})


def unseen(files: Iterable[str]) -> set[str]:
    """The rows of the page that none of these files is. files: paths below a run dir."""
    seen = set(files)
    return {row for row, pattern in described().items() if not any(map(pattern.fullmatch, seen))}


def _named(text: str) -> list[str]:
    """The first cells of its tables."""
    return re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE)
