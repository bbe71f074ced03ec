"""Where the state of an attempt comes from."""

from __future__ import annotations

import pytest

from ftlaunch.recovery import NONE, choose, newest_common


@pytest.mark.parametrize(
    ("slots", "ranks", "step"),
    [
        ({}, 0, NONE),
        ({}, 2, NONE),
        ({0: [3, 4, NONE]}, 1, 4),
        ({0: [3, 4, NONE], 1: [4, 3, 2]}, 2, 4),
        ({0: [5, 4, 3], 1: [4, 3, 2]}, 2, 4),  # rank 1 was torn while it wrote step 5
        ({0: [5, NONE, NONE], 1: [4, NONE, NONE]}, 2, NONE),
        ({0: [5, 4, NONE]}, 2, NONE),  # a rank is missing
        ({0: [NONE] * 3, 1: [NONE] * 3}, 2, NONE),
        ({0: [0, NONE, NONE], 1: [0, NONE, NONE]}, 2, 0),
        ({0: [7, 9, 8], 1: [8, 7, 9], 2: [8, NONE, 7]}, 3, 8),
        ({0: [9, 8], 1: [9, 8], 2: [1, 2]}, 2, 9),  # of more ranks than the job has now
    ],
)
def test_newest_common(slots: dict[int, list[int]], ranks: int, step: int) -> None:
    assert newest_common(slots, ranks) == step


@pytest.mark.parametrize(
    ("memory", "storage", "kind", "step"),
    [
        (NONE, NONE, "fresh", 0),
        (10, NONE, "memory", 10),
        (NONE, 10, "storage", 10),
        (10, 10, "memory", 10),
        (9, 10, "storage", 10),
        (11, 10, "memory", 11),
        (0, NONE, "memory", 0),
    ],
)
def test_choose(memory: int, storage: int, kind: str, step: int) -> None:
    source = choose(memory, storage)
    assert (source.kind, source.step) == (kind, step)
