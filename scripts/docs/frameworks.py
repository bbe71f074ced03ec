"""Renders what works with which framework, from the marks `exact` and `refused` of the adapters' tests.

The tests are only read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from house import ROOT

_TESTS = ROOT / "tests/adapters"
_MARKS = ("exact", "refused")
_HOW = {
    "Transformers": ("`ft.transformers.wrap(trainer)`, or `--auto-attach`", "transformers"),
    "TRL": ("the same", "transformers"),
    "Lightning": ("`callbacks=[ft.lightning.Callback()]`, or `--auto-attach`", "lightning"),
    "Fabric": ("`job = ft.lightning.attach(fabric, model=...)`", "lightning"),
    "DeepSpeed": ("`job = ft.deepspeed.attach(engine)`", "deepspeed"),
    "torchtitan": ("`checkpoint=ft.torchtitan.CheckpointManager.Config()`, or `--override.imports`", "torchtitan"),
    "Megatron": ("EasyCkpt's calls, from `ftlaunch_hooks.adapters.easyckpt`", "megatron"),
    "MindSpore": ("`callbacks=[ExceptionCheckpoint(...)]` of `ftlaunch_mindspore`", "mindspore"),
    "Accelerate": ("`job = ft.accelerate.attach(accelerator)`", "accelerate"),
}


class Shown(NamedTuple):
    """What one mark says."""

    mark: str  # exact or refused
    framework: str
    what: list[str]  # the features that are exact, or refused


def shown() -> Iterator[Shown]:
    """Yield every mark, file by file."""
    for path in sorted(_TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr in _MARKS:
                    framework, *what = (ast.literal_eval(argument) for argument in mark.args)
                    yield Shown(mark.func.attr, framework, what)


def table() -> str:
    """Return a table with a row for each framework. Raises KeyError for a framework that _HOW does not describe."""
    found: dict[str, dict[str, list[str]]] = {name: {mark: [] for mark in _MARKS} for name in _HOW}
    for mark, framework, what in shown():
        found[framework][mark] += [feature for feature in what if feature not in found[framework][mark]]
    lines = ["| | attach | killed, and bit for bit as undisturbed | refused |", "| --- | --- | --- | --- |"]
    for name, (how, guide) in _HOW.items():
        exact, refused = (", ".join(found[name][mark]) for mark in _MARKS)
        lines.append(f"| [{name}]({guide}.md) | {how} | {exact} | {refused} |")
    return "\n".join(lines)
