"""Creates generators in the place of holders that create them only when needed, so that states can be put back."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

import torch

_made: list[Any] = []


def make(holder: Any, attribute: str, saved: Mapping[str, Any]) -> None:
    """Set an attribute to a new generator of the kind that was saved. Its state is not put back here.

    Collators of Transformers 5.24 create their generator anew in any process but the one noted beside it.
    """
    _made.append(_like(saved))
    setattr(holder, attribute, _made[-1])
    if hasattr(holder, f"_{attribute}_pid"):
        setattr(holder, f"_{attribute}_pid", os.getpid())


def unmake(holder: Any, attribute: str) -> None:
    """Undo `make` if it has set this attribute, so that the holder makes the generator itself."""
    if any(getattr(holder, attribute) is generator for generator in _made):
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
