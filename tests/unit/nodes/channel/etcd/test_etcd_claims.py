"""Claims of terms in etcd: the same rules as in a run dir, and those that only etcd needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fakes.clock import Clock
from tests.support.fakes.etcd import FakeEtcd

from ftlaunch.nodes.channel.arbiter import Arbiter
from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.nodes.channel.etcd.claims import EtcdClaims
from ftlaunch.nodes.channel.etcd.messages import KEEP_ALIVE

SIGN = Sign(term=5, address="10.0.0.1", port=29400, machine="a machine", pid=7, started=70, count=0)
NEXT = replace(SIGN, term=6, address="10.0.0.2", pid=8)
OTHER = replace(SIGN, pid=8, address="10.0.0.2")


@pytest.fixture
def etcd() -> FakeEtcd:
    return FakeEtcd()


@pytest.fixture(params=["run dir", "etcd"])
def claims(request: pytest.FixtureRequest, tmp_path: Path, etcd: FakeEtcd) -> Arbiter:
    return Claims(tmp_path) if request.param == "run dir" else EtcdClaims(etcd, "j")


def test_a_sign_is_read_as_it_was_shown(claims: Arbiter) -> None:
    assert claims.read() is None
    assert claims.newest() is None
    assert claims.claim(SIGN)
    assert claims.read() == claims.newest() == SIGN
    claims.show(replace(SIGN, count=1, over=75))
    assert claims.read() == replace(SIGN, count=1, over=75)
    assert claims.next_term() == 6


def test_a_term_is_claimed_once_and_none_below_it(claims: Arbiter) -> None:
    assert claims.claim(SIGN)
    assert not claims.claim(OTHER)
    assert not claims.claim(replace(OTHER, term=4))
    assert claims.read() == SIGN
    assert claims.claim(NEXT)
    assert claims.read() == NEXT


def test_whoever_has_a_lower_term_may_not_commit(claims: Arbiter) -> None:
    with pytest.raises(PermissionError):
        claims.check(5)
    assert claims.claim(SIGN)
    claims.check(5)
    assert claims.claim(NEXT)
    with pytest.raises(PermissionError, match=r"another head has taken over the job, at 10\.0\.0\.2 port 29400"):
        claims.check(5)


def test_a_jobs_signs_are_its_own(etcd: FakeEtcd) -> None:
    assert EtcdClaims(etcd, "j").claim(SIGN)
    assert EtcdClaims(etcd, "k").read() is None


def test_a_claim_that_was_made_counts_though_its_answer_was_lost(etcd: FakeEtcd) -> None:
    """Taken out: nobody is the head of this term, and the job waits for another candidate."""

    class AsksAgain(FakeEtcd):
        ask_once = FakeEtcd.ask

        def ask(self, path, request, patience_seconds=0.0):  # type: ignore[no-untyped-def] # as EtcdClient, which has patience
            try:
                return self.ask_once(path, request, patience_seconds)
            except OSError:
                return self.ask_once(path, request, patience_seconds)

    etcd = AsksAgain()
    etcd.lose_next_answer = True
    claims = EtcdClaims(etcd, "j")
    assert claims.claim(SIGN)
    assert not etcd.lose_next_answer, "the fault did not fire"
    assert not claims.claim(OTHER), "the term is another one's"


def test_the_sign_of_a_head_that_was_replaced_replaces_nothing(etcd: FakeEtcd) -> None:
    """Taken out: the new head reads an old term, and both go on."""
    claims = EtcdClaims(etcd, "j")
    assert claims.claim(SIGN)
    assert claims.claim(NEXT)
    with pytest.raises(PermissionError, match=r"at 10\.0\.0\.2 port 29400"):
        claims.show(replace(SIGN, count=1))
    assert claims.read() == NEXT


def test_terms_never_fall_back_though_the_sign_has_gone(etcd: FakeEtcd) -> None:
    """Taken out: a head that slept for days takes the next job's head for an older one, and commits."""
    claims = EtcdClaims(etcd, "j")
    terms = []
    for _ in range(3):
        terms.append(claims.next_term())
        assert claims.claim(replace(SIGN, term=terms[-1]))
        claims.show(replace(SIGN, term=terms[-1], count=1))
    (lease,) = etcd.leases
    etcd.expire(lease)
    assert claims.read() is None
    assert claims.next_term() > max(terms)


def test_a_sign_that_etcd_has_lost_is_shown_again(etcd: FakeEtcd) -> None:
    """With another lease: the first one is gone, too."""
    claims = EtcdClaims(etcd, "j")
    assert claims.claim(SIGN)
    claims.show(replace(SIGN, count=1))
    (lease,) = etcd.leases
    claims.show(replace(SIGN, count=2))
    etcd.expire(lease)
    with pytest.raises(OSError, match="lease not found"):
        claims.show(replace(SIGN, count=3))
    for count in (4, 5):
        claims.show(replace(SIGN, count=count))
        assert claims.read() == replace(SIGN, count=count)
    (other,) = etcd.leases
    assert [of for _, of in etcd.keys.values()] == [other]


def test_a_lease_is_renewed_once_an_hour(etcd: FakeEtcd) -> None:
    clock = Clock()
    claims = EtcdClaims(etcd, "j", clock)
    assert claims.claim(SIGN)
    for count in range(1, 100):
        claims.show(replace(SIGN, count=count))
        clock.now += 100.0
    assert etcd.asked.count(KEEP_ALIVE) == 2
    assert len(etcd.leases) == 1


ASKS: list[Callable[[Arbiter], object]] = [
    lambda claims: claims.newest(), lambda claims: claims.next_term(), lambda claims: claims.claim(NEXT),
    lambda claims: claims.show(SIGN), lambda claims: claims.check(5),
]  # fmt: skip


@pytest.mark.parametrize("ask", ASKS)
def test_an_etcd_that_does_not_answer_is_not_taken_for_an_empty_one(
    etcd: FakeEtcd, ask: Callable[[Arbiter], object]
) -> None:
    claims = EtcdClaims(etcd, "j")
    assert claims.claim(SIGN)
    etcd.silent = True
    assert claims.read() is None
    with pytest.raises(OSError, match="e1:2379"):
        ask(claims)
