"""A head shows that it lives, and sees that another one has taken over."""

from __future__ import annotations

import select
import time
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from ftlaunch.nodes.agent.head import sign_of_life
from ftlaunch.nodes.agent.head.sign_of_life import SignOfLife
from ftlaunch.nodes.channel.claims import Claims, Sign

SIGN = Sign(1, "127.0.0.1", 29500, "here", 1, 1, 0)


def test_it_looks_at_once_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out: a head that was replaced a moment ago ends the job, before it sees that it has none."""
    monkeypatch.setattr(sign_of_life, "PERIOD_SECONDS", 1000.0)
    claims = Claims(tmp_path)
    assert claims.claim(SIGN)
    life = SignOfLife(claims, SIGN)
    try:
        asked = time.monotonic()
        life.check_now()
        wait_for(lambda: life.shown_at >= asked, "a look")
        assert claims.claim(Sign(2, "127.0.0.1", 29501, "there", 1, 1, 0))
        asked = time.monotonic()
        life.check_now()
        assert select.select([life.fd], [], [], 20.0)[0], "it was replaced"
        assert life.shown_at < asked
    finally:
        life.close(0)
