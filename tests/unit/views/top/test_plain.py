"""What `ftctl top --plain` says, and when."""

from __future__ import annotations

from typing import Any

from ftlaunch.views.top.news import News
from ftlaunch.views.top.plain import PlainLines
from ftlaunch.views.top.view import Picture

RANK = {"rank": 0, "pid": 1, "alive": True, "phase": "train", "seen": 0, "beat_age": 0.1, "step_seconds": 0.5}


def picture(step: int, *, alive: bool = True, state: str = "running", attempt: int = 0, **more: Any) -> Picture:
    status = {
        "state": state, "attempt": attempt, "restarts_left": 1, "max_restarts": 3, "in_memory": 9, "committed": -1,
        "ranks": [{**RANK, "step": step, "alive": alive, "phase": "train" if step % 2 else "eval"}],
    }  # fmt: skip
    return Picture("j", status=status, **more)


def blocks(lines: PlainLines, *pictures: tuple[float, Picture]) -> list[float]:
    """When a block was said."""
    return [now for now, each in pictures if any(line.startswith("job j: ") for line in lines.of(each, now))]


def test_a_job_that_trains_is_told_of_every_half_minute() -> None:
    """Taken out by hand: with a block for each new step an hour has 3,600 of them."""
    looks = [(float(second), picture(second)) for second in range(3600)]
    assert len(blocks(PlainLines(), *looks)) == 120


def test_a_change_of_state_is_told_at_once() -> None:
    lines = PlainLines()
    assert blocks(
        lines, (0, picture(1)), (1, picture(2)), (2, picture(2, alive=False)), (3, picture(2, state="backoff")),
        (4, picture(0, attempt=1)), (5, picture(1, attempt=1)), (6, Picture("j", silence="waited 1 s")),
        (7, Picture("j", silence="waited 2 s")), (36, Picture("j", silence="waited 31 s")),
    ) == [0, 2, 3, 4, 6, 36]  # fmt: skip


def test_what_happens_is_told_at_once_and_alone() -> None:
    lines = PlainLines()
    assert blocks(lines, (0, picture(1))) == [0]
    news = (News("03:04:05", "incident: rank 1 died", grave=True), News("03:04:06", "attempt 1 has begun", grave=False))
    assert list(lines.of(picture(2, news=news), 1)) == [
        "03:04:05Z ! incident: rank 1 died", "03:04:06Z attempt 1 has begun",
    ]  # fmt: skip
    assert list(lines.of(Picture("j", ended="done", silence="gone"), 2)) == []
