"""What a sampler keeps from pass to pass in plain attributes, and whether it gives an order again.

A sampler may count its passes itself (`self.epoch += 1`), or remember how far it is. Numbers and strings among its
attributes are saved, and so are the generators that it holds. What else its order may depend on (a list that it
shuffles in place, a generator seeded by the system's entropy) cannot be brought back; asking a copy of the sampler
shows that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

Attributes = dict[str, dict[str, Any]]
"""path of a sampler -> name of an attribute -> value"""

_PLAIN = (bool, int, float, str, type(None))
_MAX_DEPTH = 3  # of nested samplers


def plain_attributes(sampler: Any) -> Attributes:
    """Return the numbers and strings among the attributes of a sampler, and of the samplers within it."""
    return {
        path: {name: value for name, value in vars(inner).items() if type(value) in _PLAIN}
        for path, inner in _within("sampler", sampler, _MAX_DEPTH)
    }


def put_back_attributes(sampler: Any, saved: Attributes) -> None:
    """Give a sampler, and those within it, the attributes that `plain_attributes` has read."""
    for path, inner in _within("sampler", sampler, _MAX_DEPTH):
        vars(inner).update(saved.get(path, {}))


def changed_attributes(before: Attributes, after: Attributes) -> Attributes:
    """Return the attributes in `after` whose values differ from those in `before`, or are new."""
    return {
        path: {name: value for name, value in held.items() if before.get(path, {}).get(name, _PLAIN) != value}
        for path, held in after.items()
    }


def copied(sampler: Any) -> Any:
    """Return a copy of a sampler that can be asked for an order without moving the sampler itself.

    Generators are shared with the copy; the caller puts them back afterwards.
    """
    return _copied(sampler, _MAX_DEPTH)


def _copied(value: Any, depth: int) -> Any:
    if isinstance(value, (list, dict, set)):
        return value.copy()
    if isinstance(value, Tensor):
        return value.clone()
    if type(value).__module__ == "numpy" and hasattr(value, "copy"):
        return value.copy()
    if not depth or not _is_sampler(value):
        return value
    made = object.__new__(type(value))
    vars(made).update({name: _copied(held, depth - 1) for name, held in vars(value).items()})
    return made


def _within(path: str, sampler: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if _is_sampler(sampler):
        yield path, sampler
        for name, held in list(vars(sampler).items()) if depth else ():
            if _is_sampler(held):
                yield from _within(f"{path}.{name}", held, depth - 1)


def _is_sampler(value: Any) -> bool:
    """Whether an object gives indices: a sampler of torch's, or a similar object with its attributes in a dict."""
    if isinstance(value, torch.utils.data.Sampler):
        return True
    return hasattr(value, "__dict__") and hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__")
