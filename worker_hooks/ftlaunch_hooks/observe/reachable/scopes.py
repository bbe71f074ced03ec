"""The variables of the functions that are running: those that matter behind this moment."""

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
    """A function of the script's that is running, or a module's code."""

    name: str
    """`train`; where the same function runs twice, `train~1` for the outer one"""
    frame: FrameType
    names: LiveNames

    @property
    def is_module(self) -> bool:
        """Whether the variables are those of a module."""
        if self.frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return False  # to ask a function for its variables fills the dict that `forget` has cleared
        return self.frame.f_locals is self.frame.f_globals


def running_scopes(innermost: FrameType | None) -> list[Scope]:
    """The script's functions that are running, the innermost first; those of libraries may be between them."""
    found: list[Scope] = []
    names: dict[str, int] = {}
    frame = innermost
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            name = str(frame.f_globals.get("__name__")) if code.co_name == "<module>" else code.co_name
            number = names[name] = names.get(name, -1) + 1
            found.append(Scope(f"{name}~{number}" if number else name, frame, live_names(code, frame.f_lasti)))
        frame = frame.f_back
    return found


def is_loop_of_script(innermost: FrameType | None, scopes: list[Scope]) -> bool:
    """Whether the script makes the steps: in a loop of a function of its own, or where it calls the hooks itself.

    Elsewhere the loop is a library's, and its adapter says what is saved.
    """
    if any(scope.names.is_in_loop for scope in scopes):
        return True
    frame = innermost
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return bool(scopes) and frame is scopes[0].frame


def place_of(scopes: list[Scope]) -> str:
    """Where the innermost function of the script's is: the same in a process that is at the same place of the loop."""
    return f"{scopes[0].name}:{scopes[0].names.place}" if scopes else ""


def visit_scopes(walk: LoopWalk, scopes: list[Scope]) -> None:
    """Go through variables of running functions that are read behind this moment, and those of the script's modules.

    The outermost function comes first: an object has the same first path, whatever has been called since.
    """
    for scope in reversed(scopes):
        if not scope.is_module:
            stored, given = _wanted(scope)
            walk.visit_variables(scope.name, scope.frame, stored, "local")
            walk.visit_variables(scope.name, scope.frame, given, "given")
            forget(scope.frame, scope.names.stored_in_loops)
        _visit_module_of(walk, scope, scopes)
    walk.visit_further_modules(_variables_of)


def _wanted(scope: Scope) -> tuple[dict[str, Any], dict[str, Any]]:
    """Variables of a function by name, in the order of the code, which is the same in each process.

    Second are numbers and texts that no loop around this moment stores: the function was given them, or has made them
    before.
    """
    code, variables = scope.frame.f_code, scope.frame.f_locals
    shared = {*code.co_cellvars, *code.co_freevars}  # functions inside may read and store those
    order = [*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names]
    live = (scope.names.live | shared) - scope.names.targets
    stored = scope.names.stored_in_loops | shared
    chosen = [name for name in dict.fromkeys(order) if name in live and name in variables and name[:1] != "."]
    given = [name for name in chosen if name not in stored and type(variables[name]) in SCALARS]
    return {name: variables[name] for name in chosen if name not in given}, {name: variables[name] for name in given}


def _visit_module_of(walk: LoopWalk, scope: Scope, scopes: list[Scope]) -> None:
    variables, name = scope.frame.f_globals, str(scope.frame.f_globals.get("__name__"))
    running = next((one for one in scopes if one.is_module and one.frame.f_globals is variables), None)
    walk.visit_module(name, variables, _filter_of(running))


def _filter_of(running: Scope | None) -> Callable[[str], bool]:
    """Tell which variables of a module matter: not those that a pass of the module's own loop makes anew."""
    if running is None:
        return lambda name: True
    names = running.names
    read = names.live | names_read_by_functions(running.frame.f_globals)

    def wanted(name: str) -> bool:
        return name not in names.stored_in_loops or (name in read and name not in names.targets)

    return wanted


def names_read_by_functions(variables: dict[str, Any]) -> set[str]:
    """Global names that the functions and classes of a module read."""
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


_read_in: dict[int, tuple[CodeType, frozenset[str]]] = {}  # by id: to hash a code object takes long


def _names_in(code: CodeType) -> frozenset[str]:
    """Names that a function and those inside it read or store as globals."""
    known = _read_in.get(id(code))
    if known is None or known[0] is not code:
        inner = (one for one in code.co_consts if isinstance(one, CodeType))
        own = {str(one.argval) for one in dis.get_instructions(code) if one.opname.endswith(("_GLOBAL", "_NAME"))}
        known = _read_in[id(code)] = code, frozenset(own).union(*map(_names_in, inner))
    return known[1]


def _variables_of(name: str) -> dict[str, Any] | None:
    return vars(sys.modules[name]) if is_script_module(name) else None


def forget(frame: FrameType, stored: Set[str]) -> None:
    """Before Python 3.13 a function keeps the dict that it has shown: what a step has made would live for another one.

    The dict of a module, a class or of exec() is no copy: those are the variables themselves. Numbers and words stay:
    a script may hold the dict, by locals(). stored: names that the loops around store.
    """
    variables = frame.f_locals
    if type(variables) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        for name in stored & variables.keys():
            if type(variables[name]) not in SCALARS:
                del variables[name]
