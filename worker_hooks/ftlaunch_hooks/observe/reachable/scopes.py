"""Finds the variables of running functions that matter after this moment, and visits them in a walk.

The Survey calls this module in the thread that trains. Frames of the script are read and never run.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Set
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

from ftlaunch_hooks.observe.reachable.kinds import SCALARS, is_library, is_ours, is_script_module
from ftlaunch_hooks.observe.reachable.loop_names import LiveNames, live_names
from ftlaunch_hooks.observe.reachable.walk import LoopWalk


@dataclass(frozen=True)
class Scope:
    """A running function of the script's, or the running code of a module."""

    name: str
    """`train`; if the same function runs twice, `train~1` for the outer call"""
    frame: FrameType
    names: LiveNames
    """names at the instruction under way"""

    @property
    def is_module(self) -> bool:
        """Whether the variables belong to a module."""
        if self.frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return False  # reading the variables of a function would fill the dict that `forget` has cleared
        return self.frame.f_locals is self.frame.f_globals


def running_scopes(innermost: FrameType | None) -> list[Scope]:
    """Return the script's running functions, the innermost first. Functions of libraries may be between them."""
    found: list[Scope] = []
    names: dict[str, int] = {}
    frame = innermost
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            name = str(frame.f_globals.get("__name__")) if code.co_name == "<module>" else code.co_name
            number = names.get(name, -1) + 1
            names[name] = number
            found.append(Scope(f"{name}~{number}" if number else name, frame, live_names(code, frame.f_lasti)))
        frame = frame.f_back
    return found


def is_loop_of_script(innermost: FrameType | None, scopes: list[Scope]) -> bool:
    """Return whether the script makes the steps: in a loop of its own, or by calls of these hooks.

    Otherwise the loop is a library's, and the library's adapter decides what is saved.
    """
    if any(scope.names.is_in_loop for scope in scopes):
        return True
    frame = innermost
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return bool(scopes) and frame is scopes[0].frame


def place_of(scopes: list[Scope]) -> str:
    """Return where the innermost function of the script is. Another process at the same place gets the same text."""
    return f"{scopes[0].name}:{scopes[0].names.place}" if scopes else ""


def visit_scopes(walk: LoopWalk, scopes: list[Scope]) -> None:
    """Visit variables of running functions that are read after this moment, and variables of the script's modules.

    The outermost function comes first, so that an object has the same first path whatever has been called since.
    """
    for scope in reversed(scopes):
        if not scope.is_module:
            stored, given = _wanted(scope)
            walk.visit_variables(scope.name, holder=scope.frame, variables=stored, how="local")
            walk.visit_variables(scope.name, holder=scope.frame, variables=given, how="given")
            forget(scope.frame, scope.names.stored_in_loops)
        _visit_module_of(walk, scope, scopes)
    walk.visit_further_modules(_variables_of)


def _wanted(scope: Scope) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the variables of a function that matter, by name, in the order of the code.

    The order is the same in each process.

    Returns:
        The variables that may change, and the given variables: numbers and texts that no loop around this moment
        stores.
    """
    code = scope.frame.f_code
    variables = scope.frame.f_locals
    shared = {*code.co_cellvars, *code.co_freevars}  # inner functions may read and store these
    order = [*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names]
    live = (scope.names.live | shared) - scope.names.targets
    stored = scope.names.stored_in_loops | shared
    chosen = [name for name in dict.fromkeys(order) if name in live and name in variables and name[:1] != "."]
    given = [name for name in chosen if name not in stored and type(variables[name]) in SCALARS]
    return {name: variables[name] for name in chosen if name not in given}, {name: variables[name] for name in given}


def _visit_module_of(walk: LoopWalk, scope: Scope, scopes: list[Scope]) -> None:
    variables = scope.frame.f_globals
    name = str(variables.get("__name__"))
    running = next((other for other in scopes if other.is_module and other.frame.f_globals is variables), None)
    walk.visit_module(name, variables, _filter_of(running))


def _filter_of(running: Scope | None) -> Callable[[str], bool]:
    """Return a function that tells for a module's variable whether it matters.

    A variable that each pass of the module's own loop makes anew does not matter.

    Args:
        running: the running code of the module; None if the module's import is complete.
    """
    if running is None:
        return lambda name: True
    names = running.names
    read = names.live | names_read_by_functions(running.frame.f_globals)

    def wanted(name: str) -> bool:
        return name not in names.stored_in_loops or (name in read and name not in names.targets)

    return wanted


def names_read_by_functions(variables: dict[str, Any]) -> set[str]:
    """Return the global names that the functions and classes of a module read. variables: the module's dict."""
    found: set[str] = set()
    module = variables.get("__name__")
    for value in list(variables.values()):
        if type(value) is FunctionType and value.__globals__ is variables:
            found |= _names_in(value.__code__)
        elif issubclass(type(value), type) and vars(value).get("__module__") == module:
            for held in list(vars(value).values()):
                inner = held.__func__ if type(held) in (staticmethod, classmethod) else held
                if type(inner) is FunctionType:
                    found |= _names_in(inner.__code__)
    return found


_names_by_code: dict[int, tuple[CodeType, frozenset[str]]] = {}  # by id, because hashing a code object takes long


def _names_in(code: CodeType) -> frozenset[str]:
    """Return the names that a function and its inner functions read or store as globals."""
    known = _names_by_code.get(id(code))
    if known is None or known[0] is not code:
        inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
        own = {
            str(instruction.argval)
            for instruction in dis.get_instructions(code)
            if instruction.opname.endswith(("_GLOBAL", "_NAME"))
        }
        known = _names_by_code[id(code)] = code, frozenset(own).union(*map(_names_in, inner))
    return known[1]


def _variables_of(name: str) -> dict[str, Any] | None:
    return vars(sys.modules[name]) if is_script_module(name) else None


def forget(frame: FrameType, stored: Set[str]) -> None:
    """Delete values that loops make from the copy of the variables that a function keeps once it was read.

    Before Python 3.13 a function keeps the dict that `f_locals` has returned, and the values of a step would live for
    one more step. The dict of a module, of a class or of exec() is no copy, and is left alone. Numbers and words stay,
    because a script may hold the dict by locals().

    Args:
        frame: the frame of the function.
        stored: names that the loops around store.
    """
    variables = frame.f_locals
    if type(variables) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        for name in stored & variables.keys():
            if type(variables[name]) not in SCALARS:
                del variables[name]
