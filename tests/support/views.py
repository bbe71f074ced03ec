"""What the supervisor sees of a rank, made up for tests."""

from __future__ import annotations

from typing import Any

from ftlaunch.ranks.view import RankView

START = 1000.0
TRAINING = RankView(
    rank=0, started=START, beating=True, attached=True, phase="train", step=10, beat=START + 50,
    first_step_done=True, exited=False,
)  # fmt: skip


def view(**changes: Any) -> RankView:
    return TRAINING._replace(**changes)
