"""What a script imports at its top, found by reading it: nothing of it is run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

Wanted = tuple[str, ...]
"""`module`; or `module:name` for a name that is imported from it, and which may be made only then"""


def imported_by(kind: str, target: str) -> Wanted:
    """What a rank's script or module imports at its top, besides torch; nothing where it cannot be read."""
    script = Path(*target.split(".")).with_suffix(".py") if kind == "module" else Path(target)
    beside = Path() if kind == "module" else script.parent
    try:
        source = script.read_bytes()
    except OSError:
        return ()
    found = top_imports(source, lambda name: (beside / name).exists() or (beside / f"{name}.py").exists())
    return tuple(name for name in found if _root(name) != "torch")


def top_imports(source: bytes, is_local: Callable[[str], bool]) -> Wanted:
    """The modules in their order, up to the first statement that is no import: it may change what an import does.

    Without the standard library, which is fast, and those of which `is_local` says that they lie beside the script:
    they may change between attempts. A source that cannot be read has none.
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return ()
    found = dict.fromkeys(name for statement in _imports(body) for name in _names(statement))
    return tuple(name for name in found if _root(name) not in sys.stdlib_module_names and not is_local(_root(name)))


def _root(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for number, statement in enumerate(body):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        elif number or not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            return


def _names(statement: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if statement.level or statement.module is None:
        return []
    return [statement.module if one.name == "*" else f"{statement.module}:{one.name}" for one in statement.names]
