"""Renders the events of the journal from the classes in reporting/events: names, when they are told, fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from house import SOURCES

# The fields of classes that pass them on without naming them.
_HANDED_ON = {"warm_parent": ["state", "pid", "status", "why", "ranks"]}
_FIRST = ("job", "ranks", "nodes", "incidents", "checkpoints")  # the modules with which the page begins


class JournalEvent(NamedTuple):
    """One event of the journal."""

    name: str
    when: str
    fields: list[str]


def table() -> str:
    """Return all events as a Markdown table."""
    lines = ["| event | when | fields |", "| --- | --- | --- |"]
    by_name: dict[str, list[JournalEvent]] = {}
    for event in events():
        by_name.setdefault(event.name, []).append(event)
    for name, alike in by_name.items():
        lines.append(f"| `{name}` | {' Or: '.join(event.when for event in alike)} | {', '.join(alike[0].fields)} |")
    return "\n".join(lines)


def events() -> Iterator[JournalEvent]:
    """Yield each class with a name for the journal: those of the modules in `_FIRST` first."""
    found = sorted((SOURCES["ftlaunch"] / "reporting/events").glob("*.py"))
    for path in sorted(found, key=lambda path: _FIRST.index(path.stem) if path.stem in _FIRST else len(_FIRST)):
        classes = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}
        for node in classes.values():
            if name := _name(node):
                when = " ".join((ast.get_docstring(node) or "").split("\n\n", 1)[0].split())
                yield JournalEvent(name, when, _fields(node, classes) or _HANDED_ON[name])


def _name(node: ast.ClassDef) -> str:
    """Return the value that a class gives to `name`, or an empty string."""
    for line in node.body:
        if isinstance(line, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "name" for t in line.targets):
            return str(ast.literal_eval(line.value))
    return ""


def _fields(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[str]:
    """Return the keys of the mapping that `fields` returns; without such a method those of the base class."""
    above = next((classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes), None)
    method = next((line for line in node.body if isinstance(line, ast.FunctionDef) and line.name == "fields"), None)
    if method is None:
        return [] if above is None else _fields(above, classes)
    local = {target.id: line.value for line in method.body if isinstance(line, ast.Assign)
             for target in line.targets if isinstance(target, ast.Name)}  # fmt: skip
    returned = next(line.value for line in reversed(method.body) if isinstance(line, ast.Return))
    found: list[str] = []
    for key, value in zip(returned.keys, returned.values, strict=True) if isinstance(returned, ast.Dict) else ():
        if isinstance(key, ast.Constant):
            found.append(str(key.value))
        elif isinstance(value, ast.Name) and isinstance(inner := local.get(value.id), ast.Dict):
            found += [str(ast.literal_eval(k)) for k in inner.keys if k is not None]
        elif above is not None:  # super().fields()
            found += _fields(above, classes)
    return found
