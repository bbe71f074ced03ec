"""Makes values fit for JSON, which has no NaN and no Infinity. Pure.

Python's `json` writes both all the same; jq and browsers then refuse the whole line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def without_nan(value: Any) -> Any:
    """Return a copy of `value` with None in the place of every number that is not finite.

    Args:
        value: scalars, in any nesting of mappings, lists and tuples; tuples become lists.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return value
