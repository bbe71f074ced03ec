"""Generators that are made here in the place of their holder, which would make them when it needs them first."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

import torch

_made: list[Any] = []


def make(holder: Any, attribute: str, saved: Mapping[str, Any]) -> None:
    """Set an attribute to a generator of the kind that was saved. Its state is not put back.

    Collators of Transformers 5.24 make their generator anew in a process that is not noted beside it.
    """
    _made.append(_like(saved))
    setattr(holder, attribute, _made[-1])
    if hasattr(holder, f"_{attribute}_pid"):
        setattr(holder, f"_{attribute}_pid", os.getpid())


def unmake(holder: Any, attribute: str) -> None:
    """Undo `make`, where it was called: the holder makes the generator itself."""
    if any(getattr(holder, attribute) is one for one in _made):
        setattr(holder, attribute, None)


def _like(saved: Mapping[str, Any]) -> Any:
    if saved["kind"] == "random.Random":
        return random.Random(0)  # noqa: S311 - not for secrets
    if saved["kind"] == "torch.Generator":
        return torch.Generator(saved["device"])
    import numpy  # noqa: PLC0415 - only jobs that have used it need it

    if saved["kind"] == "numpy.random.RandomState":
        return numpy.random.RandomState(0)
    return numpy.random.Generator(getattr(numpy.random, saved["state"]["bit_generator"])(0))
