"""Writes what the docs repeat from the code: `python scripts/docs/generate.py` (`--check` only compares).

A stretch of Markdown stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`; a drawing is a whole file.
`tests/unit/docs/test_docs.py` fails while a generated text is stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import areas
import commands
import frameworks
import journal
import lists
import metrics
import state_table
import variables
import zoo
from house import ROOT

STRETCHES: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/guide/frameworks.md", "frameworks"): frameworks.table,
    ("docs/architecture.md", "folders of the core"): areas.core_table,
    ("docs/architecture.md", "folders of nodes"): lambda: areas.area_table("nodes"),
    ("docs/architecture.md", "folders of views"): lambda: areas.area_table("views"),
    ("docs/architecture.md", "folders of tools"): lambda: areas.area_table("tools"),
    ("docs/architecture.md", "folders of the hooks"): areas.hooks_table,
    ("docs/architecture.md", "folders beside"): areas.beside_table,
    ("docs/guide/spec.md", "options"): lists.options,
    ("docs/guide/spec.md", "bare options"): commands.bare_options,
    ("docs/guide/journal.md", "events"): journal.table,
    ("docs/guide/metrics.md", "metrics"): metrics.table,
    ("docs/guide/without-supervisor.md", "environment"): lists.environment,
    ("docs/api.md", "public names"): lists.public_names,
    ("docs/decisions/README.md", "decisions"): lists.decisions,
    ("docs/guide/zoo.md", "shapes"): zoo.table,
    ("docs/glossary.md", "words"): lists.words,
    ("docs/reference/commands.md", "commands"): commands.reference,
    ("docs/reference/commands.md", "exit codes"): commands.exit_table,
    ("docs/reference/environment.md", "variables"): variables.table,
    ("docs/reference/exit-codes.md", "exit codes"): lists.exit_table,
}
DRAWINGS: dict[str, Callable[[], str]] = {
    "docs/images/areas.svg": areas.imports_drawing,
    "docs/images/core.svg": lambda: areas.drawing(areas.CORE),
    "docs/images/nodes.svg": lambda: areas.drawing(areas.NODES),
    "docs/images/views.svg": lambda: areas.drawing(areas.VIEWS),
    "docs/images/tools.svg": lambda: areas.drawing(areas.TOOLS),
    "docs/images/hooks.svg": lambda: areas.drawing(areas.HOOKS),
    "docs/state_table.svg": state_table.drawing,
}


def with_stretch(text: str, name: str, content: str) -> str:
    """Return `text` with the stretch `name` replaced. Raises ValueError unless there is exactly one such stretch."""
    begin = f"<!-- generated: {name} -->"
    end = f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"cannot generate {name!r}: there must be one {begin} ... {end}")
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", text)


def wanted() -> dict[Path, str]:
    """Return the right content of every file with something generated in it."""
    files: dict[Path, str] = {ROOT / name: draw() for name, draw in DRAWINGS.items()}
    for (name, stretch), make in STRETCHES.items():
        path = ROOT / name
        text = files.get(path) or path.read_text(encoding="utf-8")
        files[path] = with_stretch(text, stretch, make())
    return files


def stale() -> list[str]:
    """Return the files whose content differs from the right one."""
    return [
        path.relative_to(ROOT).as_posix()
        for path, text in wanted().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write the stale files, or, with --check, name them; return the exit code."""
    late = stale()
    if "--check" in sys.argv[1:]:
        for name in late:
            print(f"{name} is stale: run python scripts/docs/generate.py")
        return 1 if late else 0
    for path, text in wanted().items():
        if path.relative_to(ROOT).as_posix() in late:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
