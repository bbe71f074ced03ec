"""Finds the modules that a script imports at its top, by parsing its source. Nothing of the script is run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

Wanted = tuple[str, ...]
"""names in the form `module`, or `module:name` for a name imported from a module, which may be a module as well"""


def imported_by(kind: str, target: str) -> Wanted:
    """Return what a rank's script or module imports at its top, without torch; nothing if it cannot be read.

    Args:
        kind: script or module.
        target: path of the script, or name of the module, which is looked for in the current directory.
    """
    script = Path(*target.split(".")).with_suffix(".py") if kind == "module" else Path(target)
    beside = Path() if kind == "module" else script.parent
    try:
        source = script.read_bytes()
    except OSError:
        return ()
    found = top_imports(source, lambda name: (beside / name).exists() or (beside / f"{name}.py").exists())
    return tuple(name for name in found if _root(name) != "torch")


def top_imports(source: bytes, is_local: Callable[[str], bool]) -> Wanted:
    """Return the modules, or names of modules, that a source imports at its top, in their order. Pure.

    The top ends at the first statement that is no import, because that may change what imports do. Modules of the
    standard library are left out, because they load fast, and local ones, because they may change between attempts.

    Args:
        source: Python source; if it cannot be parsed, there are no imports.
        is_local: returns whether a top-level module lies beside the script.
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return ()
    found = dict.fromkeys(name for statement in _imports(body) for name in _names(statement))
    return tuple(name for name in found if _root(name) not in sys.stdlib_module_names and not is_local(_root(name)))


def _root(name: str) -> str:
    """Return the top-level package of a name."""
    return name.partition(":")[0].partition(".")[0]


def _imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports before the first other statement; a docstring may come first."""
    for number, statement in enumerate(body):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        elif number or not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            return


def _names(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the names that a statement imports; none for a relative import."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if statement.level or statement.module is None:
        return []
    return [statement.module if alias.name == "*" else f"{statement.module}:{alias.name}" for alias in statement.names]
