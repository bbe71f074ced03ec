"""Reads the positions of iterators without moving them, and tells which iterators begin anew after a resume.

Not every position can be read. The walk and the checks of loops call these functions in the thread that trains.
"""

from __future__ import annotations

import gc
import io
import itertools
from types import GeneratorType
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from ftlaunch_hooks.observe.reachable.fingerprints import scalar_text
from ftlaunch_hooks.observe.reachable.kinds import SCALARS, Category, instance_dict, kind_of_type
from ftlaunch_hooks.observe.reachable.saved_elsewhere import SavedElsewhere

_MAX_DEPTH = 4


def position_of(iterator: Any, depth: int = _MAX_DEPTH) -> str:
    """Return a text that changes when an iterator moves; "" for an iterator whose position cannot be read.

    Args:
        iterator: the iterator.
        depth: number of iterators within each other that are read.
    """
    kind = type(iterator)
    if kind is GeneratorType:
        return _position_of_generator(iterator)
    if issubclass(kind, _BaseDataLoaderIter):
        return str(instance_dict(iterator).get("_num_yielded"))
    if kind.__module__ not in ("builtins", "itertools"):
        return ""
    if kind.__module__ == "builtins" and hasattr(kind, "__length_hint__"):
        return str(kind.__length_hint__(iterator))
    parts = [position_of(held, depth - 1) for held in gc.get_referents(iterator)] if depth else []
    lists = [str(len(held)) for held in gc.get_referents(iterator) if type(held) is list]
    return ",".join([*parts, *lists, *([repr(iterator)] if kind.__name__ == "count" else [])])


def _position_of_generator(generator: Any) -> str:
    frame = generator.gi_frame
    if frame is None:
        return "ended"
    variables = sorted(frame.f_locals.items())
    texts = [f"{name}={scalar_text(value)}" for name, value in variables if type(value) in SCALARS]
    return f"{frame.f_lasti} {' '.join(texts)}"


def is_lost_iterator(value: Any, saved: SavedElsewhere) -> bool:
    """Return whether a value is an iterator that begins anew after a resume: nothing it reads has a saved position."""
    if issubclass(type(value), io.IOBase):
        return type(value).__module__ == "_io" and not value.closed and value.readable()  # not a log that is written
    if _is_endless_repeat(value):
        return any(is_lost_iterator(held, saved) for held in gc.get_referents(value))
    iterates = kind_of_type(type(value)).category is Category.ITERATOR
    return iterates and not saved(value) and not saved.is_read_by(value)


def _is_endless_repeat(value: Any) -> bool:
    """Return whether a value is an itertools.repeat without end, which has no position that could be lost."""
    if type(value) is not itertools.repeat:
        return False
    try:
        value.__length_hint__()
    except TypeError:
        return True
    return False
