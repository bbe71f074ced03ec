"""Claims of terms: one winner each, and nobody reads half a sign."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.history.runs import CLAIMS
from ftlaunch.nodes.channel.claim_files import ClaimFiles
from ftlaunch.nodes.channel.claims import Claims, Sign, of_fields, parse

SIGN = Sign(term=1, address="10.0.0.1", port=29400, machine="a machine", pid=7, started=70, count=0)


def test_a_sign_is_read_as_it_was_shown(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    assert claims.read() is None
    assert claims.next_term() == 1
    assert claims.claim(SIGN)
    assert claims.read() == SIGN
    claims.show(replace(SIGN, count=1, over=75))
    assert claims.read() == replace(SIGN, count=1, over=75)
    assert claims.next_term() == 2


def test_of_many_that_claim_a_term_one_wins(tmp_path: Path) -> None:
    for term in range(1, 20):
        begin = threading.Barrier(4)
        won: list[int] = []

        def claim(pid: int, term: int = term, begin: threading.Barrier = begin, won: list[int] = won) -> None:
            begin.wait()
            if Claims(tmp_path).claim(replace(SIGN, term=term, pid=pid)):
                won.append(pid)

        threads = [threading.Thread(target=claim, args=(pid,)) for pid in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        newest = Claims(tmp_path).read()
        assert newest is not None
        assert [newest.pid] == won


def test_a_winner_that_died_before_its_sign_holds_nobody_up(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    assert claims.claim(SIGN)
    (tmp_path / CLAIMS / "claim.2").touch()
    assert claims.next_term() == 3
    assert claims.claim(replace(SIGN, term=3))


class LosesAnswers(ClaimFiles):
    """NFS: the server has made the link, its answer is lost, and the request is sent again."""

    def link(self, written: str, name: str) -> None:
        super().link(written, name)
        super().link(written, name)


def test_a_claim_that_was_made_counts_though_the_answer_says_that_it_was_not(tmp_path: Path) -> None:
    """Taken out: nobody is the head of this term, and the job waits for another candidate."""
    claims = Claims(tmp_path, LosesAnswers(tmp_path / CLAIMS))
    assert claims.claim(SIGN)
    assert claims.read() == SIGN
    assert not claims.claim(SIGN), "the name is another one's"


def test_an_older_term_is_not_won_any_more(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    assert claims.claim(replace(SIGN, term=5))
    assert not claims.claim(replace(SIGN, term=4))
    newest = claims.read()
    assert newest is not None
    assert newest.term == 5


def test_whoever_has_a_lower_term_may_not_commit(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    with pytest.raises(PermissionError, match="cannot be read"):
        claims.check(1)
    assert claims.claim(replace(SIGN, term=2))
    claims.check(2)
    with pytest.raises(PermissionError, match=r"another head has taken over the job, at 10\.0\.0\.1 port 29400"):
        claims.check(1)


def test_a_head_that_has_written_over_the_sign_of_the_next_one_may_not_commit(tmp_path: Path) -> None:
    """It was frozen between its look at the sign and showing its own. Taken out (the claims are not asked): it may."""
    claims = Claims(tmp_path)
    assert claims.claim(SIGN)
    assert claims.newer(1) is None
    assert Claims(tmp_path).claim(replace(SIGN, term=2, address="10.0.0.2"))
    claims.show(replace(SIGN, count=8))
    newest = claims.read()
    assert newest is not None
    assert newest.term == 1
    with pytest.raises(PermissionError, match=r"another head has taken over the job, at 10\.0\.0\.2"):
        claims.check(1)
    assert claims.newer(1) == replace(SIGN, term=2, address="10.0.0.2")
    claims.check(2)


def test_a_claim_that_cannot_be_read_lets_nobody_commit(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    assert claims.claim(SIGN)
    (tmp_path / CLAIMS / "claim.2").write_text("{")
    with pytest.raises(PermissionError, match=r"claim\.2 cannot be read: it is no claim"):
        claims.check(1)


@given(st.binary(max_size=200) | st.sampled_from([b"{}", b'{"term": 1}', b"null", b"[]"]))
def test_what_is_no_sign_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(content)


@pytest.mark.parametrize("field", ["term", "address", "port", "machine", "pid", "started", "count", "over"])
def test_a_field_that_is_nonsense_is_refused(field: str) -> None:
    told = {**SIGN.__dict__, field: 1.5}
    with pytest.raises(ValueError, match=field):
        of_fields(told)
