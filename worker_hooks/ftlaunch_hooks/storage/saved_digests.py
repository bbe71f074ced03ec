"""What ranks have said of the values that they have saved: the digests that state/part_digests.py makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAME = "object_digests"
"""in a rank's state: name of an attached object -> its digest"""
LAYOUT_DIGITS = 16
"""the first ones of a digest: of the shapes of what the rank holds of all modules"""
_TENSORS_DIGITS = 16
"""those behind them: of the object's tensors"""


def has_same_values(state: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether two ranks have saved the same values of all modules and optimizers, as far as they have said it.

    Args:
        state: name of an object -> its tree, without tensors, as a rank has saved it; with the rank's digests.
        other: the same of another rank.
    """
    digests, others = state.get(NAME, {}), other.get(NAME, {})
    names = [name for name in digests if state.get(name, {}).get("kind") in ("module", "optimizer")]
    end = LAYOUT_DIGITS + _TENSORS_DIGITS
    return all(digests[name][:end] == others.get(name, "")[:end] for name in names)
