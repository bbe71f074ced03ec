"""Values as JSON can say them. Python writes NaN and Infinity, which no JSON has: jq and browsers refuse the line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def without_nan(value: Any) -> Any:
    """Return a value of dicts, lists, tuples and scalars with None in the place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(one) for one in value]
    return value
