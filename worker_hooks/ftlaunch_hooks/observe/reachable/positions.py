"""Where iterators are, as far as that can be read without moving them, and which of them begin anew after a resume."""

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

_DEEP = 4


def position_of(iterator: Any, depth: int = _DEEP) -> str:
    """A text that is another one once an iterator was moved, where that can be seen; "" elsewhere."""
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
    told = [f"{name}={scalar_text(value)}" for name, value in variables if type(value) in SCALARS]
    return f"{frame.f_lasti} {' '.join(told)}"


def is_lost_iterator(value: Any, saved: SavedElsewhere) -> bool:
    """Whether an iterator begins anew after a resume: it reads nothing that knows where it is."""
    if issubclass(type(value), io.IOBase):
        return type(value).__module__ == "_io" and not value.closed and value.readable()  # not a log that is written
    if _is_endless_repeat(value):
        return any(is_lost_iterator(held, saved) for held in gc.get_referents(value))
    iterates = kind_of_type(type(value)).category is Category.ITERATOR
    return iterates and not saved(value) and not saved.is_read_by(value)


def _is_endless_repeat(value: Any) -> bool:
    """Whether an iterator hands out one object for ever: it has no position that could be lost."""
    if type(value) is not itertools.repeat:
        return False
    try:
        value.__length_hint__()
    except TypeError:
        return True
    return False
