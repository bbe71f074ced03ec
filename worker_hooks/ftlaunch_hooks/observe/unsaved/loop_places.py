"""Tells whether a training loop continues after a resume where it was, or begins at its first pass.

The functions read frames of the script and run none of its code. LoopPosition and EpochLoops call them in the thread
that trains.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections import deque
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from ftlaunch_hooks.observe.reachable.kinds import Category, instance_dict, is_library, is_ours, kind_of_type
from ftlaunch_hooks.observe.reachable.positions import is_lost_iterator
from ftlaunch_hooks.observe.reachable.saved_elsewhere import SavedElsewhere
from ftlaunch_hooks.observe.unsaved.loop_source import names_before_loops, names_in, source_of

_ASKED = ("step", "resumed", "restored_from", "attempt")  # attributes of a Job by which a script finds its place
_SERIES = (list, tuple, dict, set, deque, Tensor)


def lost_sources(frame: FrameType, saved: SavedElsewhere) -> set[str]:
    """Return the names of iterators that the innermost `for` consumes and that begin anew after a resume.

    Nobody saves the position of these iterators. A script may skip the elements that it has had, which cannot be seen
    here, unless the script begins at job.step.
    """
    values = {path: _value(frame, path) for path in source_of(frame.f_code, frame.f_lasti)}
    if cycles := {path for path, (_, value) in values.items() if value is itertools.cycle}:
        return cycles  # a cycle() holds the elements of its first pass, which are saved nowhere
    if any(_is_position(value, saved) for value in values.values()):
        return set()  # the others may read the one with the position, or be read by it: `cycle(loader)`
    if any(_asks(frame, path) for path in values):
        return set()
    return {path for path, (_, value) in values.items() if _is_restarted(value, saved)}


def has_position(frame: FrameType, saved: SavedElsewhere) -> bool:
    """Return whether the innermost `for` goes through an attached object or a DataLoader."""
    return any(_is_position(_value(frame, path), saved) for path in source_of(frame.f_code, frame.f_lasti))


def asks_for_step(frame: FrameType) -> bool:
    """Return whether a function reads the step of the job, so that the function can continue where it was."""
    return any(_asks(frame, path) for path in names_in(frame.f_code))


def asks_before_loops(frame: FrameType) -> bool:
    """Return whether a function has read the step of the job before its loops began, to begin them there."""
    return any(_asks(frame, path) for path in names_before_loops(frame.f_code, frame.f_lasti))


def _asks(frame: FrameType, path: str) -> bool:
    base, _ = _value(frame, path)
    return path.rpartition(".")[2] in _ASKED and type(base).__name__ == "Job" and is_ours(inspect.getfile(type(base)))


def _value(frame: FrameType, path: str) -> tuple[Any, Any]:
    """Return the object that holds the last name of a dotted path, and the value of that name, without any property.

    Both are None where they do not exist.
    """
    first, *parts = path.split(".")
    base = None
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for part in parts:
        base = value
        value = instance_dict(base).get(part, inspect.getattr_static(type(base), part, None))
    return base, value


def _is_position(base_and_value: tuple[Any, Any], saved: SavedElsewhere) -> bool:
    """Return whether a value goes through an attached object or a DataLoader, directly or by an object or generator."""
    base, value = base_and_value
    read = _reads(value) if isinstance(value, FunctionType) else ()
    candidates = [candidate for candidate in (base, value, *read) if candidate is not None]
    if any(saved(candidate) or isinstance(candidate, DataLoader) for candidate in candidates):
        return True
    return is_script_object(value) and saved.is_read_by(value)


def is_script_object(value: object) -> bool:
    """Return whether an object has a class of the script's, and attributes."""
    kind = kind_of_type(type(value))
    return kind.category is Category.OBJECT and kind.is_of_script


def _is_restarted(value: Any, saved: SavedElsewhere) -> bool:
    if isinstance(value, FunctionType):
        return inspect.isgeneratorfunction(value) and not is_library(value.__code__.co_filename)
    if is_lost_iterator(value, saved):
        return True
    is_series = isinstance(value, _SERIES) or type(value).__module__ == "numpy"
    return (is_series or is_script_object(value)) and hasattr(type(value), "__iter__")


def _reads(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function reads from its module and from the functions around it."""
    yield from (function.__globals__.get(name) for name in function.__code__.co_names)
    yield from (cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType())
