"""Reads the sentences that the product can print from its code: each text and f-string, with `{}` for a value.

The sentences of configs/fault_rules.yaml count, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from house import ROOT, SOURCES

_HOLE = "{}"
_REFUSED = {"Cannot": "", "CannotFind": "cannot {} the run: "}
"""the exception that is raised with a refusal -> the words before the refusal on the terminal"""


@cache
def sentences() -> frozenset[str]:
    """Return every text of the product's code, each in one line."""
    files = (path for package in SOURCES.values() for path in package.rglob("*.py"))
    texts = [text for path in files for text in _texts(ast.parse(path.read_bytes()))]
    meanings = re.findall(r"meaning: '?(.*?)'?\}?$", (ROOT / "configs/fault_rules.yaml").read_text(), re.MULTILINE)
    return frozenset(" ".join(text.split()) for text in (*texts, *meanings))


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts below a node; the parts of an f-string are no texts of their own."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else _HOLE for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def stands_in_the_code(quoted: str) -> bool:
    """Return whether the product can print a quoted sentence, in which `...` stands for values or for more words."""
    wanted = _pattern(quoted)
    return any(wanted.search(sentence.replace(_HOLE, "...")) for sentence in sentences())


def refusals() -> Iterator[str]:
    """Yield the sentences with which `ftctl` refuses: those of each `raise Cannot(...)` and `raise CannotFind(...)`."""
    top = SOURCES["ftlaunch"]
    folders = ("cli", "views/commands", "tools/commands")
    commands = [path for folder in folders for path in sorted((top / folder).rglob("*.py"))]
    for path in [*commands, top / "nodes/commands.py", top / "history/runs.py"]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                begin = _REFUSED.get(node.exc.func.id)
                text = node.exc.args[0] if node.exc.args else None
                if begin is not None and isinstance(text, ast.Constant | ast.JoinedStr):
                    yield begin + " ".join("".join(_texts(text)).split())


def quotes(quoted: str, sentence: str) -> bool:
    """Return whether a quotation on a page means a sentence, in which `{}` stands for values."""
    return _pattern(quoted).match(sentence.replace(_HOLE, "...")) is not None


def _pattern(quoted: str) -> re.Pattern[str]:
    parts = [re.escape(part.strip()) for part in " ".join(quoted.split()).split("...")]
    return re.compile(".*".join(parts))
