"""A head shows that it lives, and sees that another one has taken over."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from ftlaunch.nodes.agent.head import sign_of_life
from ftlaunch.nodes.agent.head.sign_of_life import SignOfLife
from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.nodes.channel.votes.claims import Enough, VotedClaims
from ftlaunch.nodes.channel.votes.records import Answer, Record, Voter

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


def test_voters_that_change_count_while_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out: a head that loses its majority in mid-change neither leads nor ends."""
    monkeypatch.setattr(sign_of_life, "PERIOD_SECONDS", 1000.0)
    own, other, third = (Voter(name, f"10.0.0.{number}", 7000) for number, name in enumerate("ABC", 1))

    class Reached:
        """Voters of which the others answer as long as the change has not begun to end."""

        def read_own(self) -> None:
            return None

        def forget_own(self) -> bool:
            return True

        def ask(self, voters: Sequence[Voter], offered: Record | None, enough: Enough) -> dict[str, Answer]:
            if offered is None or not offered.joining:
                return {}
            return {voter.name: Answer(taken=True, kept=offered, age_seconds=0.0) for voter in voters}

    claims = VotedClaims(Claims(tmp_path), Reached(), 3.0)
    assert claims.claim(SIGN)
    life = SignOfLife(claims, SIGN)
    try:
        assert life.record is None
        life.want_voters((own, other, third), own, ())
        life.check_now()
        wait_for(lambda: life.record is not None and life.record.joining, "the first step")
        assert life.voters == ()
        assert life.record is not None
        assert life.record.all_voters == (own, other, third)
    finally:
        life.close(0)
