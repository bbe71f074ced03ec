"""What is written as JSON holds no NaN."""

from __future__ import annotations

import json
import math

from ftlaunch.common.finite import without_nan


def test_numbers_that_are_not_finite_are_null() -> None:
    told = {"loss": [1.5, math.nan, {"x": (math.inf, -math.inf, 3)}], "name": "NaN", "on": True, "none": None}
    assert json.dumps(without_nan(told), allow_nan=False) == (
        '{"loss": [1.5, null, {"x": [null, null, 3]}], "name": "NaN", "on": true, "none": null}'
    )
