"""Claims in a real etcd of three members: one winner each, whatever happens to members and answers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.support.etcd import EtcdCluster
from tests.support.tcp import LosesAnswers, served

from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.channel.etcd import client, messages
from ftlaunch.nodes.channel.etcd.claims import EtcdClaims
from ftlaunch.nodes.channel.etcd.client import EtcdClient, EtcdRefused, EtcdSilent
from ftlaunch.spec.meeting_stores.etcd import EtcdSpec

SIGN = Sign(term=1, address="10.0.0.1", port=29400, machine="a machine", pid=7, started=70, count=0)
RACERS, TERMS = 8, 150

# Claims the next term again and again, once it is told to begin; prints those that it has won, and what it has read.
RACER = f"""
import json, sys
from dataclasses import replace
from ftlaunch.nodes.channel.etcd.claims import EtcdClaims
from ftlaunch.nodes.channel.etcd.client import EtcdClient
from ftlaunch.spec.meeting_stores.etcd import EtcdSpec
from tests.etcd.test_etcd_claims import SIGN
pid, *ports = map(int, sys.argv[1:])
claims = EtcdClaims(EtcdClient(EtcdSpec(tuple(("127.0.0.1", port) for port in ports))), "race")
won, read, newest = [], [], claims.newest()
print("ready", flush=True)
sys.stdin.readline()
while newest is None or newest.term < {TERMS}:
    term = 1 if newest is None else newest.term + 1
    if claims.claim(replace(SIGN, term=term, pid=pid)):
        won.append(term)
    newest = claims.newest()
    read.append((newest.term, newest.pid))
print(json.dumps([won, read]))
"""


@pytest.fixture
def claims(cluster: EtcdCluster) -> Iterator[EtcdClaims]:
    """Of a process that has claimed the first term."""
    made = EtcdClaims(EtcdClient(cluster.spec), "j")
    assert made.claim(SIGN)
    yield made


@pytest.mark.long
def test_of_eight_processes_that_claim_a_term_one_wins(cluster: EtcdCluster) -> None:
    ports = list(map(str, cluster.ports))
    command = [sys.executable, "-c", RACER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [
        subprocess.Popen([*command, str(pid), *ports[pid % 3 :], *ports[: pid % 3]], **pipes)  # type: ignore[call-overload]
        for pid in range(RACERS)
    ]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * RACERS
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    told = [json.loads(racer.communicate(timeout=120)[0]) for racer in racers]
    winners = {term: pid for pid, (won, _) in enumerate(told) for term in won}
    assert sum(len(won) for won, _ in told) == len(winners) == TERMS, "each term has one winner, and one only"
    for _, read in told:
        assert all(winners[term] == pid for term, pid in read), "nobody has read a sign of another than the winner"
        assert [term for term, _ in read] == sorted(term for term, _ in read)
    assert len(set(winners.values())) > 1, "they did not race"


def test_a_claim_whose_answer_is_lost_is_won_all_the_same(cluster: EtcdCluster) -> None:
    """The transaction is made, and the connection ends before its answer has come."""
    proxy = LosesAnswers(cluster.ports[0])
    with served(proxy) as port:
        claims = EtcdClaims(EtcdClient(EtcdSpec((("127.0.0.1", port),))), "j")
        assert claims.next_term() >= 1
        proxy.lose_next = True
        assert claims.claim(SIGN)
        assert proxy.lost == 1, "the fault did not fire"
        assert not claims.claim(replace(SIGN, pid=8)), "the term is another one's"
        proxy.lose_next = True
        claims.show(replace(SIGN, count=1))
        assert proxy.lost == 2
        assert claims.read() == replace(SIGN, count=1)


@pytest.mark.long
def test_a_claim_waits_for_the_next_leader(cluster: EtcdCluster, claims: EtcdClaims) -> None:
    cluster.kill(cluster.leader())
    begun = time.monotonic()
    assert claims.claim(replace(SIGN, term=2))
    assert time.monotonic() - begun > 0.5, "etcd was never without a leader"
    assert claims.newest() == replace(SIGN, term=2)


def test_claims_and_commits_wait_for_an_etcd_that_is_started_again(cluster: EtcdCluster, claims: EtcdClaims) -> None:
    """Taken out: a checkpoint that is due while etcd has no leader is given up."""
    for member in range(3):
        cluster.kill(member)
    assert claims.read() is None, "etcd still answers"
    again = threading.Timer(1.0, lambda: [cluster.start(member) for member in range(3)])
    again.start()
    try:
        claims.check(1)
    finally:
        again.join()
    assert claims.claim(replace(SIGN, term=2))


def test_a_member_that_is_frozen_costs_a_second_once(cluster: EtcdCluster, claims: EtcdClaims) -> None:
    """It takes connections and requests, and answers none. Taken out: each sign of life costs that second."""
    follower = next(number for number in range(3) if number != cluster.leader())
    cluster.stop(follower)
    others = [cluster.ports[number] for number in range(3) if number != follower]
    heard: list[bytes] = []

    def pass_on(peer: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", cluster.ports[follower])) as member:
            while told := peer.recv(1 << 16):
                heard.append(told)
                member.sendall(told)

    with served(pass_on) as frozen:
        asked = EtcdClaims(EtcdClient(EtcdSpec(tuple(("127.0.0.1", port) for port in (frozen, *others)))), "j")
        begun = time.monotonic()
        assert asked.read() == SIGN
        assert heard, "the fault did not fire"
        assert time.monotonic() - begun >= client.ANSWER_SECONDS, "the fault did not fire"
        before = len(heard)
        for count in range(1, 6):
            asked.show(replace(SIGN, count=count))
        assert len(heard) == before, "the frozen member is not asked again"
    cluster.go_on(follower)


def test_a_minority_answers_nothing(cluster: EtcdCluster, claims: EtcdClaims) -> None:
    """Taken out (`serializable` reads): a member that is cut off shows the sign of a head that was replaced."""
    for member in (0, 1):
        cluster.kill(member)
    assert claims.read() is None
    with pytest.raises(EtcdSilent, match=r"connection refused; .*no answer"):
        EtcdClient(cluster.spec).ask(messages.RANGE, messages.build_read(messages.key_of("j")))
    cluster.start(0)
    assert claims.newest() == SIGN


def test_signs_go_with_their_lease(cluster: EtcdCluster, claims: EtcdClaims) -> None:
    claims.show(replace(SIGN, count=1))
    (lease,) = EtcdClient(cluster.spec).ask("/v3/lease/leases", {})["leases"]
    kept = EtcdClient(cluster.spec).ask(messages.KEEP_ALIVE, lease)["result"]
    assert kept == {**kept, **lease, "TTL": "86400"}
    EtcdClient(cluster.spec).ask("/v3/lease/revoke", lease)
    assert claims.newest() is None
    assert claims.next_term() > SIGN.term
    with pytest.raises(EtcdRefused, match="requested lease not found"):
        claims.show(replace(SIGN, count=2))
    claims.show(replace(SIGN, count=3))
    assert claims.newest() == replace(SIGN, count=3)
