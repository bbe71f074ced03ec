"""Every kind of cause that the supervisor can give is known beforehand: metrics have a label for each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ftlaunch
from ftlaunch.policy import cause_kinds
from ftlaunch.policy.cause_kinds import KINDS, CauseKind, kinds
from ftlaunch.spec.parsing.rule_parser import builtin

SOURCES = Path(ftlaunch.__file__).parent
_MAKERS = {"Cause", "_cause_without_exit"}


def given() -> Iterator[tuple[str, ast.expr]]:
    """Yield each place that gives a cause its kind, with the kind: an argument of a maker, or `kind=` of replace()."""
    for folder in ("policy", "engine", "nodes/cluster", "health"):
        for path in sorted((SOURCES / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if not isinstance(call, ast.Call):
                    continue
                name = call.func.id if isinstance(call.func, ast.Name) else ""
                if name in _MAKERS and call.args:
                    yield f"{path.name}:{call.lineno}", call.args[0]
                if name in {*_MAKERS, "replace"}:
                    yield from ((f"{path.name}:{call.lineno}", word.value) for word in call.keywords
                                if word.arg == "kind")  # fmt: skip


def test_every_kind_that_is_given_is_known() -> None:
    """Taken out by hand: without NODE_LOST in WITHOUT_RULE a lost machine is unknown to metrics."""
    known, found = kinds(builtin()), list(given())
    assert len(found) >= 7, "what makes causes has other names now"
    words = [(at, value.value) for at, value in found if isinstance(value, ast.Constant)]
    names = [(at, value.id) for at, value in found if isinstance(value, ast.Name) and value.id.isupper()]
    assert [(at, word) for at, word in words if word not in known] == []
    assert [(at, name) for at, name in names if getattr(cause_kinds, name) not in known] == []


def test_every_constant_has_its_line() -> None:
    constants = {value for name, value in vars(cause_kinds).items() if name.isupper() and isinstance(value, str)}
    assert constants <= {kind.name for kind in KINDS}
    assert len({kind.name for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("forgotten", ["by_supervisor", "blames_machine", "may_stay_away", "needs_person"])
def test_a_line_that_leaves_something_out_is_an_error(forgotten: str) -> None:
    given: dict[str, Any] = vars(KINDS[0]) | {"name": "new"}
    assert CauseKind(**given).name == "new"
    del given[forgotten]
    with pytest.raises(TypeError, match=forgotten):
        CauseKind(**given)


def test_the_classes_of_the_rules_and_of_the_job_are_known() -> None:
    known = kinds(builtin(), ["network"])
    assert {"comm", "exception", "network", "node-lost", "hang", "unknown"} <= known
    assert known >= {kind.name for kind in KINDS}
