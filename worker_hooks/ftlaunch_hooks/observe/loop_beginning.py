"""Finds a script's own loop that begins at its first pass although the job has resumed.

`for epoch in range(3)` goes through all three epochs in every attempt. The steps before the resume are made once more,
on top of the state that has them already. A loop counts as correct if any of the script's files asks the job for its
position. The files' source is read for that, and no code of the script is run.

The Job calls `beginning_loop` at the first optimizer step after a resume, in the thread that steps the optimizer.
"""

from __future__ import annotations

import ast
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import DataLoader

_ASKED_OF_JOB = frozenset({"step", "steps"})
"""names that count only as attributes of the job, because optimizers and settings have them, too"""
_ASKED_OF_ANY = frozenset({"epochs", "batches", "resumed", "restored_from", "peek"})
"""names that count as attributes of any object"""
_COUNTERS = frozenset({"enumerate", "tqdm", "track", "reversed"})
_RANGES = frozenset({"range", "trange"})
_OURS = str(Path(__file__).parents[1])
_INSTALLED = tuple({sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")})

Place = tuple[CodeType, int]
"""a code object, and a line of it"""


def places_of(frame: FrameType | None) -> list[Place]:
    """Return the code and line of each of the script's frames, from this frame outwards."""
    return [(frame.f_code, frame.f_lineno) for frame in _script_frames(frame)]


@dataclass(frozen=True)
class BeginningLoop:
    """A loop of the script's that begins at its first pass in every attempt."""

    written: str
    """the loop's first line, as the script has it"""
    place: str
    """the script's file and line"""
    better: str
    """the line that the script should have"""


def beginning_loop(frame: FrameType | None, job: object, attached_at: Iterable[Place]) -> BeginningLoop | bool:
    """Find the outermost loop around a step, and tell whether it begins at its first pass in every attempt.

    Args:
        frame: a frame of the optimizer's step, or of a call within.
        job: the object that knows at which step the loop should begin.
        attached_at: the places where attach() was called. A loop around attach() is no loop over the job's steps.

    Returns:
        The loop, if it begins at its first pass. False if the step is in no loop. True if the script asks the job, or
        if the loop begins elsewhere or is not understood.
    """
    frames = list(_script_frames(frame))
    places = list(attached_at)
    for outer in reversed(frames):  # the outermost loop is the loop over epochs
        for loop in _enclosing_loops(outer.f_code, outer.f_lineno):
            if any(code is outer.f_code and _is_within(loop, line) for code, line in places):
                continue
            if not _is_restarted(loop.iter, outer) or _asks(frames, job):
                return True
            return BeginningLoop(
                written=f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}",
                place=f"{outer.f_code.co_filename}:{loop.lineno}",
                better=_corrected(loop),
            )
    return False


def _corrected(loop: ast.For) -> str:
    """Return the first line of the loop, rewritten so that the loop continues where the job is."""
    iterated = loop.iter
    passes = "..."
    if isinstance(iterated, ast.Call) and _last_name(iterated.func) in _RANGES and len(iterated.args) == 1:
        passes = ast.unparse(iterated.args[0])
    name = ast.unparse(loop.target) if isinstance(loop.target, ast.Name) else "epoch"
    return f"for {name} in job.epochs({passes}): for batch in job.batches(loader):"


def _script_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if _is_of_the_script(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _is_of_the_script(path: str) -> bool:
    """Return whether a file is neither Python's, nor an installed package's, nor ours."""
    return not path.startswith(("<", _OURS, *_INSTALLED))


def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):  # the file may have changed since it was run
        return ast.Module([], [])


# --- the loop ---------------------------------------------------------------------------------------------


def _enclosing_loops(code: CodeType, line: int) -> list[ast.For]:
    """Return the `for` statements of a code object whose bodies contain a line, the outermost first."""
    found: list[ast.For] = []
    nodes: list[ast.AST] = [_tree(code.co_filename)]
    while nodes:
        node = nodes.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case) or not _spans(child, line):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found = []  # a loop around a definition is not around the calls
            elif isinstance(child, ast.For) and _is_within(child, line):
                found.append(child)
            nodes.append(child)
    return found


def _spans(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.match_case):
        return True
    first = getattr(node, "lineno", 0)
    last = getattr(node, "end_lineno", 0)
    return bool(first <= line <= (last or first))


def _is_within(loop: ast.For, line: int) -> bool:
    """Return whether a line is in a loop's body."""
    return loop.body[0].lineno <= line <= (loop.body[-1].end_lineno or loop.body[-1].lineno)


def _is_restarted(iterated: ast.expr, frame: FrameType) -> bool:
    """Return whether the expression of a `for` yields the same elements, from the first one on, in every attempt."""
    if not isinstance(iterated, ast.Call):
        return isinstance(_value(iterated, frame), DataLoader)
    name = _last_name(iterated.func)
    if name in _COUNTERS and iterated.args:
        return _is_restarted(iterated.args[0], frame)
    if name in _RANGES and iterated.args:
        return len(iterated.args) == 1 or isinstance(iterated.args[0], ast.Constant)
    return False


def _value(expression: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name, or of an attribute of a plain object, without running the script's code.

    None is for all other expressions.
    """
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        return _fields(_value(expression.value, frame)).get(expression.attr)
    return None


def _fields(value: object) -> Mapping[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


# --- whether the script asks ------------------------------------------------------------------------------


def _asks(frames: Iterable[FrameType], job: object) -> bool:
    """Return whether any file of the script asks the job for its position."""
    frames = list(frames)
    names = {"job"}
    for frame in frames:
        for scope in (frame.f_locals, frame.f_globals):
            for name, value in list(scope.items()):
                if value is job:
                    names.add(name)
                else:
                    names.update(field for field, held in _fields(value).items() if held is job)
    return any(_mentions(_tree(path), names) for path in _script_files(frames))


def _script_files(frames: Iterable[FrameType]) -> set[str]:
    """Return the files of frames, and of all imported modules that are not installed."""
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    imported = {path for path in modules if isinstance(path, str) and path.endswith(".py")}
    running = {frame.f_code.co_filename for frame in frames}
    return {path for path in running | imported if _is_of_the_script(path)}


def _mentions(tree: ast.Module, names: set[str]) -> bool:
    """Return whether a file asks an object with one of `names`, or any object, for the position of the job."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in _ASKED_OF_ANY:
                return True
            is_read = node.attr != "step" or id(node) not in called
            if node.attr in _ASKED_OF_JOB and is_read and _last_name(node.value) in names:
                return True
        if isinstance(node, ast.alias) and node.name in _ASKED_OF_ANY:
            return True
    return False


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Name):
        return expression.id
    return expression.attr if isinstance(expression, ast.Attribute) else ""
