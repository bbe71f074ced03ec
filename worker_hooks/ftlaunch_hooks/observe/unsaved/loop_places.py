"""Whether a training loop goes on where it was after a resume, or begins at its first pass."""

from __future__ import annotations

import inspect
import types
from collections import deque
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from ftlaunch_hooks.observe.unsaved.loop_source import names_before_loops, names_in, source_of
from ftlaunch_hooks.observe.unsaved.saved_elsewhere import SavedElsewhere
from ftlaunch_hooks.observe.unsaved.value_looks import is_library, is_ours, is_script_object

_ASKED = ("step", "resumed", "restored_from", "attempt")  # attributes of a Job by which a script finds its place
_SERIES = (list, tuple, dict, set, deque, Tensor)


def lost_sources(frame: FrameType, saved: SavedElsewhere) -> set[str]:
    """Names of what the innermost `for` takes its passes from and that begins anew, as nobody saves where it is.

    A script may pass by what it has had: that cannot be seen, unless it takes the passes from job.step on.
    """
    values = {path: _value(frame, path) for path in source_of(frame.f_code, frame.f_lasti)}
    if any(_is_position(value, saved) for value in values.values()):
        return set()  # the others may be read by it, or it by them: `cycle(loader)`
    if any(_asks(frame, path) for path in values):
        return set()
    return {path for path, (_, value) in values.items() if _begins_anew(value)}


def has_position(frame: FrameType, saved: SavedElsewhere) -> bool:
    """Whether the innermost `for` goes through something that is attached, or a DataLoader."""
    return any(_is_position(_value(frame, path), saved) for path in source_of(frame.f_code, frame.f_lasti))


def asks_for_step(frame: FrameType) -> bool:
    """Whether a function reads the step of the job: then it can go on where it was."""
    return any(_asks(frame, path) for path in names_in(frame.f_code))


def asks_before_loops(frame: FrameType) -> bool:
    """Whether a function has read the step of the job before its loops began: to begin them there."""
    return any(_asks(frame, path) for path in names_before_loops(frame.f_code, frame.f_lasti))


def _asks(frame: FrameType, path: str) -> bool:
    base, _ = _value(frame, path)
    return path.rpartition(".")[2] in _ASKED and type(base).__name__ == "Job" and is_ours(inspect.getfile(type(base)))


def _value(frame: FrameType, path: str) -> tuple[Any, Any]:
    """What holds the last name of a dotted path, and its value; no property is run. None where there is none."""
    first, *parts = path.split(".")
    base, value = None, frame.f_locals.get(first, frame.f_globals.get(first))
    for part in parts:
        base, value = value, getattr(value, "__dict__", {}).get(part, inspect.getattr_static(type(value), part, None))
    return base, value


def _is_position(found: tuple[Any, Any], saved: SavedElsewhere) -> bool:
    """Whether what is attached, or a DataLoader, is gone through: by itself, by an object, or by a generator."""
    base, value = found
    through = _reads(value) if isinstance(value, FunctionType) else ()
    if any(one is not None and (saved(one) or isinstance(one, DataLoader)) for one in (base, value, *through)):
        return True
    return is_script_object(value) and saved.is_read_by(value)


def _begins_anew(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return inspect.isgeneratorfunction(value) and not is_library(value.__code__.co_filename)
    series = isinstance(value, _SERIES) or type(value).__module__ == "numpy"
    return (series or is_script_object(value)) and hasattr(type(value), "__iter__")


def _reads(function: FunctionType) -> Iterator[Any]:
    """What a function reads of its module, and encloses."""
    yield from (function.__globals__.get(name) for name in function.__code__.co_names)
    yield from (cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType())
