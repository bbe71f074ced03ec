"""The table of the five documents names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/five-documents.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_PROMISES = 30


def _rows() -> list[str]:
    """The rows of all tables, without their heads."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith(("| promise", "| ---"))]


def test_each_row_names_tests_that_exist_or_says_what_is_missing() -> None:
    rows = _rows()
    assert len(rows) >= _PROMISES
    for row in rows:
        *_, shown = row.strip("|").split(" | ")
        named = _TEST.findall(shown)
        if shown.strip() == "-":
            assert re.search(r"\bnot\b", row), f"nothing shows it, and nothing is said to be missing: {row}"
            continue
        assert named, row
        for path, name in named:
            functions = {
                node.name
                for node in ast.walk(ast.parse((ROOT / path).read_text()))
                if isinstance(node, ast.FunctionDef)
            }
            assert name in functions, f"{path} has no {name}"
