"""Renders lists that the docs repeat from the code as Markdown: options, variables, public names, decisions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from house import ROOT, SOURCES

from ftlaunch.spec.job_spec import TITLES, part_of
from ftlaunch.spec.key import Key
from ftlaunch.spec.keys import KEYS

AREAS_OF_DECISIONS = (
    "The house", "Core: supervising", "Core: policy, health and autopsy", "Core: checkpoints and memory",
    "Core: reporting, notices and history", "Hooks: snapshots", "Hooks: what is saved, and restored exactly",
    "Hooks: data and random numbers", "Hooks: adapters and scripts as they are", "Nodes", "Where it runs", "Views",
    "Packaging, tests and docs",
)  # fmt: skip
"""the areas of decisions, in the order of the index; each page names its area below its title"""

_PROTOCOL = SOURCES["ftlaunch_contract"] / "protocol.py"
_ENV = re.compile(r'^(ENV_\w+) = "(\w+)"(?:  # (.*))?$', re.MULTILINE)


def options() -> str:
    """Return all keys of a job spec and all options, by part of the job spec."""
    rows: dict[str, list[str]] = {part: [] for part in TITLES}
    for key in KEYS:
        rows[part_of(key)].append(_option_row(key))
    lines: list[str] = []
    for part, title in TITLES.items():
        head = "| key | default | what it says | variable |"
        lines += [f"### {title}", "", head, "| --- | --- | --- | --- |", *rows[part], ""]
    return "\n".join(lines).rstrip()


def _option_row(key: Key) -> str:
    dashed = f"--{key.name.replace('_', '-')}"
    option = f"`{dashed}`" if not (key.switch and key.group == "ours") else f"`{dashed}`, `--no-{dashed[2:]}`"
    name = f"`{key.name}`" if key.yaml else ""
    names = ", ".join(part for part in (name, option if key.option else "") if part)
    default = "" if key.default is None else f"`{key.default}`"
    return f"| {names} | {default} | {_cell(key.help)} | {', '.join(f'`{variable}`' for variable in key.env)} |"


def environment() -> str:
    """Return the table of the contract's environment variables."""
    lines = ["| variable | what it says |", "| --- | --- |"]
    lines += [f"| `{name}` | {_cell(comment)} |" for _, name, comment in _ENV.findall(_PROTOCOL.read_text())]
    return "\n".join(lines)


def exit_codes() -> dict[str, int]:
    """Return the exit codes of `ftlaunch` by their names in the contract."""
    found = re.findall(r"^(EXIT_\w+) = (\d+)", _PROTOCOL.read_text(), re.MULTILINE)
    return {name: int(code) for name, code in found}


_EXITS = {
    "EXIT_DONE": ("done", "nothing"),
    "EXIT_GIVEN_UP": ("given up; the last lines say why", "read them; `ftctl report` repeats them"),
    "EXIT_USAGE": (
        "bad usage or job spec, or its places cannot be used; nothing was started",
        "correct what the sentence names",
    ),
    "EXIT_BUG": ("a bug of ftlaunch's own", "report it, with `bug.txt` of the run dir"),
    "EXIT_SAVED": ("stopped on request with a checkpoint committed", "give the same command again: it goes on"),
    "EXIT_STOPPED": ("stopped on request, nothing to save", "give the same command again"),
}


def exit_table() -> str:
    """Return the table of the exit codes of `ftlaunch`. Raises KeyError for a code that _EXITS does not describe."""
    rows = [f"| {code} | {_EXITS[name][0]} | {_EXITS[name][1]} |" for name, code in exit_codes().items()]
    return "\n".join(["| code | means | do |", "| --- | --- | --- |", *rows])


def words() -> str:
    """Return the table of words of docs/architecture.md in alphabetical order."""
    table = (ROOT / "docs/architecture.md").read_text().partition("\n## Words\n")[2].partition("\n## ")[0]
    head, rule, *rows = [line for line in table.splitlines() if line.startswith("|")]
    return "\n".join([head, rule, *sorted(rows)])


def public_names() -> str:
    """Return the table of the names that `import ftlaunch_hooks` offers, with the first paragraph of each docstring."""
    top = ast.parse((SOURCES["ftlaunch_hooks"] / "__init__.py").read_text())
    named = {target.id: node.value for node in top.body if isinstance(node, ast.Assign)
             for target in node.targets if isinstance(target, ast.Name)}  # fmt: skip
    homes = ast.literal_eval(named["_HOMES"])
    lines = ["| name | what it is |", "| --- | --- |"]
    for name in ast.literal_eval(named["__all__"]):
        home = SOURCES["ftlaunch_hooks"] / (homes[name].replace(".", "/") + ".py")
        lines.append(f"| `{name}` | {_cell(_docstring(home, name))} |")
    return "\n".join(lines)


def members(path: Path, name: str) -> list[str]:
    """Return the public methods, properties and attributes of a class, sorted."""
    body = next(node for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.ClassDef) and node.name == name)  # fmt: skip
    found: dict[str, None] = {}
    for node in ast.walk(body):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = None
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            found[node.target.attr] = None
    return sorted(member for member in found if not member.startswith("_"))


def _docstring(path: Path, name: str) -> str:
    node = next(node for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)  # fmt: skip
    return " ".join((ast.get_docstring(node) or "").split("\n\n", 1)[0].split())


def decisions() -> str:
    """Return the index of docs/decisions: for each area the questions that its pages answer.

    Raises:
        ValueError: a page belongs to no area of AREAS_OF_DECISIONS.
    """
    rows: dict[str, list[str]] = {area: [] for area in AREAS_OF_DECISIONS}
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        head, asked = path.read_text().split("\n\n", 2)[:2]
        title = head.removeprefix("# ")
        area, question = asked.removeprefix("*").split("*: ")
        if area not in rows:
            raise ValueError(f"cannot list {path.name}: no area is called {area!r}")
        rows[area].append(f"| {question} | [{title}]({path.name}) |")
    lines: list[str] = []
    for area, listed in rows.items():
        lines += [f"## {area}", "", "| question | page |", "| --- | --- |", *listed, ""]
    return "\n".join(lines).rstrip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
