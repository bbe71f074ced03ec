"""Renders the house: floors from the import contracts in pyproject.toml, sentences from each folder's docstring."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SOURCES = {
    "ftlaunch_ray": ROOT / "supervisor/ftlaunch_ray",
    "ftlaunch": ROOT / "supervisor/ftlaunch",
    "ftlaunch_mindspore": ROOT / "worker_hooks/ftlaunch_mindspore",
    "ftlaunch_hooks": ROOT / "worker_hooks/ftlaunch_hooks",
    "ftlaunch_contract": ROOT / "worker_hooks/ftlaunch_contract",
}


def floors(package: str) -> list[list[str]]:
    """Return the folders of a package as its import contract lists them, the top floor first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers" and c["containers"] == [package])
    named = [[name.strip(" ()") for name in layer.split("|")] for layer in layers]
    rows = [[name for name in row if (SOURCES[package] / name).is_dir()] for row in named]
    return [row for row in rows if row]


def folders(package: str) -> list[Path]:
    """Return every folder of a package, in the order of its floors; the package itself comes first."""
    top = SOURCES[package]
    order = [name for row in floors(package) for name in row] if package != "ftlaunch_contract" else []
    return sorted((init.parent for init in top.rglob("__init__.py")), key=lambda path: _place(path, top, order))


def _place(path: Path, top: Path, order: list[str]) -> tuple[int, str]:
    parts = path.relative_to(top).parts
    if not parts:
        return -1, ""
    return (order.index(parts[0]) if parts[0] in order else len(order)), "/".join(parts)


def sentence(folder: Path) -> str:
    """Return the first paragraph of a folder's docstring, which says what lives there and what may not."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return " ".join(docstring.split("\n\n", 1)[0].split())
