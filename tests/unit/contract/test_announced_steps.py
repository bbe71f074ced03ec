"""The step that is announced to all ranks: news that are old when they come leave room for more steps."""

from __future__ import annotations

from ftlaunch_contract.protocol import announce_step


def test_old_news_are_allowed_for() -> None:
    assert announce_step(10, 1.0) == 13
    assert announce_step(10, 0.01) == 17
    assert announce_step(10, 0.01, 0.9) == 10 + 2 + 95, "ranks may be ninety steps further by now"
    assert announce_step(10, 0.0, 0.9) == 12, "no step is known"
    assert announce_step(10, 1e-6, 0.9) == 1012, "no more than a thousand"
