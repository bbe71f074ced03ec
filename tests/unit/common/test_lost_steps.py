"""How many steps were lost, and which."""

from __future__ import annotations

import pytest

from ftlaunch.common.formatting import lost_steps


@pytest.mark.parametrize(
    ("lost", "resumed", "said"),
    [
        (0, 33, "0 steps lost"),
        (1, 33, "1 step lost (34, which all ranks had completed)"),
        (3, 33, "3 steps lost (34 to 36, which all ranks had completed)"),
        (5, 0, "5 steps lost (1 to 5, which all ranks had completed)"),
    ],
)
def test_the_steps_add_up(lost: int, resumed: int, said: str) -> None:
    assert lost_steps(lost, resumed) == said
