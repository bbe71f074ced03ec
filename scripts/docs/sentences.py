"""The sentences that the product can print, read from its code: each text and f-string, with `{}` for a value.

Those of configs/fault_rules.yaml count, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from house import ROOT, SOURCES

_HOLE = "{}"


@cache
def sentences() -> frozenset[str]:
    """Every text of the product's code, each in one line."""
    files = (path for package in SOURCES.values() for path in package.rglob("*.py"))
    texts = [text for path in files for text in _texts(ast.parse(path.read_bytes()))]
    meanings = re.findall(r"meaning: '?(.*?)'?\}?$", (ROOT / "configs/fault_rules.yaml").read_text(), re.MULTILINE)
    return frozenset(" ".join(text.split()) for text in (*texts, *meanings))


def _texts(node: ast.AST) -> Iterator[str]:
    """The texts below a node; the parts of an f-string are no texts of their own."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else _HOLE for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def stands_in_the_code(quoted: str) -> bool:
    """Whether the product can print a sentence that a page quotes; `...` there stands for values, or for more words."""
    parts = [re.escape(part.strip()) for part in " ".join(quoted.split()).split("...")]
    wanted = re.compile(".*".join(parts))
    return any(wanted.search(sentence.replace(_HOLE, "...")) for sentence in sentences())
