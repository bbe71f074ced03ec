"""The house: floors from the import contracts in pyproject.toml, sentences from each folder's docstring."""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path

from drawing import FAINT, INK, box, page, words

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
_FILL = {"ftlaunch": "#e3f2fd", "ftlaunch_hooks": "#e8f5e9", "ftlaunch_contract": "#fff3e0"}
_WIDTH, _GAP = 560, 8  # of one package's floors; pixels
_LETTER = 5.7  # pixels, of the small print in the mean


def floors(package: str) -> list[list[str]]:
    """The folders of a package, top floor first, as its import contract lists them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers" and c["containers"] == [package])
    named = [[name.strip(" ()") for name in layer.split("|")] for layer in layers]
    rows = [[name for name in row if (SOURCES[package] / name).is_dir()] for row in named]
    return [row for row in rows if row]


def folders(package: str) -> list[Path]:
    """Every folder of a package in which modules lie, in the order of its floors; the package itself comes first."""
    top = SOURCES[package]
    order = [name for row in floors(package) for name in row] if package != "ftlaunch_contract" else []
    return sorted((init.parent for init in top.rglob("__init__.py")), key=lambda path: _place(path, top, order))


def _place(path: Path, top: Path, order: list[str]) -> tuple[int, str]:
    parts = path.relative_to(top).parts
    if not parts:
        return -1, ""
    return (order.index(parts[0]) if parts[0] in order else len(order)), "/".join(parts)


def sentence(folder: Path) -> str:
    """What lives in a folder, and what may not: the first paragraph of its docstring."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return " ".join(docstring.split("\n\n", 1)[0].split())


def table() -> str:
    """All folders with their sentences, as Markdown."""
    lines = ["| folder | what it holds |", "| --- | --- |"]
    for package in SOURCES:
        lines.append(f"| **{package}** | **{sentence(SOURCES[package])}** |")
        for folder in folders(package)[1:]:
            name = folder.relative_to(SOURCES[package]).as_posix()
            lines.append(f"| [{name}/](../{folder.relative_to(ROOT).as_posix()}) | {sentence(folder)} |")
    return "\n".join(lines)


def drawing() -> str:
    """The picture of the house."""
    left, right, top = 20, 20 + _WIDTH + 40, 64
    shapes = [
        words(left, 30, "ftlaunch: the supervisor", 17, bold=True),
        words(left, 50, "one process beside the job; it never imports torch", 12, ink=FAINT),
        words(right, 30, "ftlaunch_hooks: inside each rank", 17, bold=True),
        words(right, 50, "works without a supervisor, too", 12, ink=FAINT),
    ]
    ends = [_stack(shapes, package, x, top) for package, x in (("ftlaunch", left), ("ftlaunch_hooks", right))]
    ground = max(ends) + 34
    shapes.append(words(left, ground, "ftlaunch_contract: what both share", 17, bold=True))
    shapes.append(words(left + 360, ground, "imports neither of them, and no torch", 12, ink=FAINT))
    protocol = ("protocol.py", "Environment variables, exit codes and words of the protocol, with a version", "")
    rooms = [_room(folder) for folder in folders("ftlaunch_contract")[1:]]
    last = right + _WIDTH
    ground += 14 + _row(shapes, [*rooms, protocol], left, ground + 14, last - left, _FILL["ftlaunch_contract"])
    rule = "A folder imports from folders below its floor, never from one beside it or above it."
    shapes.append(words(left, ground + 22, rule, 12, ink=FAINT))
    return page(last + 20, ground + 40, "The folders of ftlaunch, floor by floor", shapes)


def _stack(shapes: list[str], package: str, x: int, y: int) -> int:
    for row in floors(package):
        y += _row(shapes, [_room(SOURCES[package] / name) for name in row], x, y, _WIDTH, _FILL[package]) + _GAP
    return y


def _room(folder: Path) -> tuple[str, str, str]:
    """Name, sentence and modules of a folder."""
    inside = sorted(
        [path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")]
        + [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")]
    )
    return f"{folder.name}/", sentence(folder).split(". ")[0].rstrip("."), ", ".join(inside)


def _row(shapes: list[str], rooms: list[tuple[str, str, str]], x: float, y: int, width: int, fill: str) -> int:
    """Draw boxes side by side; returns their height."""
    each = (width - _GAP * (len(rooms) - 1)) / len(rooms)
    letters = int((each - 18) / _LETTER)
    texts = [(textwrap.wrap(text, letters), textwrap.wrap(inside, letters)) for _, text, inside in rooms]
    height = 30 + 13 * max(len(said) + len(listed) for said, listed in texts)
    for (name, _, _), (said, listed) in zip(rooms, texts, strict=True):
        shapes.append(box(x, y, each, height, fill))
        shapes.append(words(x + 10, y + 19, name, 14, bold=True))
        for n, line in enumerate(said + listed):
            shapes.append(words(x + 10, y + 35 + 13 * n, line, 10.5, ink=INK if n < len(said) else FAINT))
        x += each + _GAP
    return height
