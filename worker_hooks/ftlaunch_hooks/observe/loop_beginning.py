"""A script's own loop that begins at its first pass though the job has resumed: seen at the first optimizer step.

`for epoch in range(3)` goes through all three epochs in every attempt, and the steps that were made before the resume
are made once more on top of the state that has them already. A loop that asks the job where it is, anywhere in the
script's files, is left in peace: the source is read for that, and nothing of the script is run.
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

_ASKED_OF_JOB = frozenset({"step", "steps"})  # names that other objects have, too: an optimizer's step(), a config's
_ASKED_OF_ANY = frozenset({"epochs", "batches", "resumed", "restored_from", "peek"})
_COUNTERS = frozenset({"enumerate", "tqdm", "track", "reversed"})
_RANGES = frozenset({"range", "trange"})
_OURS = str(Path(__file__).parents[1])
_INSTALLED = tuple({sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")})

Place = tuple[CodeType, int]
"""a code object, and a line of it"""


def places_of(frame: FrameType | None) -> list[Place]:
    """Return where the script's frames stand, from this one outwards."""
    return [(frame.f_code, frame.f_lineno) for frame in _script_frames(frame)]


@dataclass(frozen=True)
class BeginningLoop:
    """A loop of the script's that begins at its first pass in every attempt."""

    written: str
    """as the script has it"""
    place: str
    """file and line"""
    better: str
    """what the script should have"""


def beginning_loop(frame: FrameType | None, job: object, attached_at: Iterable[Place]) -> BeginningLoop | bool:
    """Return the loop around a step that begins at its first pass in every attempt.

    Args:
        frame: of the optimizer's step, or of something it has called.
        job: what the script asks where it is to begin.
        attached_at: where attach() was called: a loop around that is no loop over the job's steps.

    Returns:
        False where the step is in no loop, True where its loop asks the job, begins elsewhere, or is not understood.
    """
    frames = list(_script_frames(frame))
    before = list(attached_at)
    for one in reversed(frames):  # the outermost loop is the one over epochs
        for loop in _loops_around(one.f_code, one.f_lineno):
            if any(code is one.f_code and _is_within(loop, line) for code, line in before):
                continue
            if not _begins_anew(loop.iter, one) or _asks(frames, job):
                return True
            written = f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
            return BeginningLoop(written, f"{one.f_code.co_filename}:{loop.lineno}", _better(loop))
    return False


def _better(loop: ast.For) -> str:
    """The same loop, written so that it goes on where the job is."""
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
    """Whether a file is neither Python's, nor an installed package's, nor ours."""
    return not path.startswith(("<", _OURS, *_INSTALLED))


def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):  # changed meanwhile, say
        return ast.Module([], [])


# --- the loop ---------------------------------------------------------------------------------------------


def _loops_around(code: CodeType, line: int) -> list[ast.For]:
    """Return the `for` statements of a code object whose bodies a line stands in, the outermost first."""
    found: list[ast.For] = []
    nodes: list[ast.AST] = [_tree(code.co_filename)]
    while nodes:
        node = nodes.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case) or not _spans(child, line):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found = []  # what is around a definition is not around its calls
            elif isinstance(child, ast.For) and _is_within(child, line):
                found.append(child)
            nodes.append(child)
    return found


def _spans(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.match_case):
        return True
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return bool(first <= line <= (last or first))


def _is_within(loop: ast.For, line: int) -> bool:
    """Whether a line stands in a loop's body."""
    return loop.body[0].lineno <= line <= (loop.body[-1].end_lineno or loop.body[-1].lineno)


def _begins_anew(iterated: ast.expr, frame: FrameType) -> bool:
    """Whether what a loop goes through is the same from its first element on in every attempt."""
    if not isinstance(iterated, ast.Call):
        return isinstance(_value(iterated, frame), DataLoader)
    name = _last_name(iterated.func)
    if name in _COUNTERS and iterated.args:
        return _begins_anew(iterated.args[0], frame)
    if name in _RANGES and iterated.args:
        return len(iterated.args) == 1 or isinstance(iterated.args[0], ast.Constant)
    return False


def _value(expression: ast.expr, frame: FrameType) -> Any:
    """The value of a name, or of an attribute of a plain object; None otherwise. No code of the script's is run."""
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
    """Whether any file of the script asks the job where it is."""
    frames = list(frames)
    names = {"job"}
    for frame in frames:
        for scope in (frame.f_locals, frame.f_globals):
            for name, value in list(scope.items()):
                names |= {name} if value is job else {field for field, held in _fields(value).items() if held is job}
    return any(_mentions(_tree(path), names) for path in _script_files(frames))


def _script_files(frames: Iterable[FrameType]) -> set[str]:
    """The files of frames, and of all modules that are not installed."""
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    imported = {path for path in modules if isinstance(path, str) and path.endswith(".py")}
    return {path for path in (*(frame.f_code.co_filename for frame in frames), *imported) if _is_of_the_script(path)}


def _mentions(tree: ast.Module, names: set[str]) -> bool:
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
