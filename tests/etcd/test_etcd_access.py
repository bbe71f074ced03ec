"""Who answers instead of etcd, and whom etcd answers: one sentence each, and never a wait without an end."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.agents import NodesJob, free_port
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.tcp import Handler, request, says, says_nothing, says_slowly, served

from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.channel.etcd import client, messages
from ftlaunch.nodes.channel.etcd.claims import EtcdClaims
from ftlaunch.nodes.channel.etcd.client import EtcdClient, EtcdRefused, EtcdSilent
from ftlaunch.spec.meeting_stores.etcd import EtcdSpec
from ftlaunch.system.job_token import ETCD_PASSWORD, ETCD_USER

pytestmark = pytest.mark.long

SIGN = Sign(term=1, address="10.0.0.1", port=29400, machine="a machine", pid=7, started=70, count=0)
READ = messages.build_read(messages.key_of("j"))


def at(*ports: int) -> EtcdClient:
    return EtcdClient(EtcdSpec(tuple(("127.0.0.1", port) for port in ports)))


# --- others that answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (says(b"404 page not found", "404 Not Found"), "it answers HTTP 404, as no etcd does from 3.4 on"),
        (says(b'{"error": "Not Found", "code": 404}', "404 Not Found"), "it answers HTTP 404"),
        (says(b"<html>"), "what it answers is not etcd's"),
        (says(b"[]"), "what it answers is not etcd's"),
    ],
)
def test_what_is_no_etcd_is_named_at_once(handler: Handler, expected: str) -> None:
    with served(handler) as port, pytest.raises(EtcdRefused) as refused:
        at(port).ask(messages.RANGE, READ, patience_seconds=60.0)
    assert expected in str(refused.value.strerror)
    assert f"127.0.0.1:{port}" in str(refused.value.strerror)


@pytest.mark.parametrize("handler", [says_nothing, says_slowly])
def test_nobody_is_waited_for_without_an_end(handler: Handler) -> None:
    """Taken out (a time-out of the socket only): one byte a second holds a head up for minutes."""
    with served(handler) as port, pytest.raises(EtcdSilent, match="no answer"):
        begun = time.monotonic()
        at(port).ask(messages.RANGE, READ)
    assert time.monotonic() - begun >= client.ANSWER_SECONDS


def test_an_answer_that_is_cut_short_is_no_answer() -> None:
    """Taken out: a member that dies while it answers counts as something that is no etcd, and is given up."""

    def dies(peer: socket.socket) -> None:
        request(peer)
        peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"header": {')

    with served(dies) as port, pytest.raises(EtcdSilent, match="its answer was cut short"):
        at(port).ask(messages.RANGE, READ)


def test_something_that_does_not_speak_http(tmp_path: Path) -> None:
    def sshd(peer: socket.socket) -> None:
        peer.sendall(b"SSH-2.0-OpenSSH_9\r\n" * 2)
        says_nothing(peer)

    with served(sshd) as port, pytest.raises(EtcdSilent) as silent:
        at(port).ask(messages.RANGE, READ)
    assert "it does not speak HTTP" in str(silent.value.strerror)


def test_a_member_that_answers_makes_up_for_those_that_do_not(cluster: EtcdCluster) -> None:
    heard: list[bytes] = []

    def says_nothing(peer: socket.socket) -> None:
        while told := peer.recv(1 << 16):
            heard.append(told)

    with served(says(b"", "404 Not Found")) as wrong, served(says_nothing) as silent:
        asked = at(free_port(), wrong, silent, cluster.ports[0])
        assert messages.parse_found(asked.ask(messages.RANGE, READ)).sign is None
        assert heard, "the fault did not fire"
        before = len(heard)
        asked.ask(messages.RANGE, READ)
        assert len(heard) == before, "the member that has answered is asked first from then on"


@pytest.mark.slow
def test_a_node_says_that_nobody_answers_and_ends(tmp_path: Path) -> None:
    nodes = NodesJob(tmp_path)
    one, other = free_port(), free_port()
    nodes.etcd = f"127.0.0.1:{one},localhost:{other}"
    try:
        nodes.agent()
        assert nodes.codes() == [2], nodes.transcript
        assert nodes.said(0) == (
            f"ftlaunch: cannot be the head: etcd at 127.0.0.1:{one},localhost:{other}:"
            f" 127.0.0.1:{one}: connection refused; localhost:{other}: connection refused\n"
        )
        nodes.assert_clean()
    finally:
        nodes.dispose()


# --- passwords -------------------------------------------------------------------------------------------------------


def test_a_user_with_the_right_password_claims(guarded: EtcdCluster) -> None:
    claims = EtcdClaims(EtcdClient(replace(guarded.spec, user="me", password="5ecret")), "j")
    assert claims.claim(SIGN)
    claims.show(replace(SIGN, count=1))
    assert claims.newest() == replace(SIGN, count=1)


def test_a_token_that_etcd_has_forgotten_is_asked_for_anew(guarded: EtcdCluster) -> None:
    """As after five minutes without a request, or when a user is changed. Taken out: the head shows no sign again."""
    claims = EtcdClaims(EtcdClient(replace(guarded.spec, user="me", password="5ecret")), "j")
    assert claims.claim(SIGN)
    root = EtcdClient(replace(guarded.spec, user="root", password="r00t"))
    root.ask("/v3/auth/user/changepw", {"name": "me", "password": "5ecret"})
    assert claims.newest() == SIGN
    claims.show(replace(SIGN, count=1))


@pytest.mark.parametrize(
    ("user", "password", "expected"),
    [
        ("me", "wrong", "authentication failed, invalid user ID or password"),
        ("nobody", "5ecret", "authentication failed, invalid user ID or password"),
        ("stranger", "5tranger", "permission denied"),
        (None, None, "user name is empty"),
    ],
)
def test_whom_etcd_does_not_know_it_refuses_at_once(
    guarded: EtcdCluster, user: str | None, password: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = EtcdClaims(EtcdClient(replace(guarded.spec, user=user, password=password)), "j")
    pauses: list[float] = []
    monkeypatch.setattr("ftlaunch.nodes.channel.etcd.client.time.sleep", pauses.append)
    with pytest.raises(EtcdRefused, match=expected):
        claims.next_term()
    assert pauses == [], "etcd is not asked a second time"


def test_a_wrong_password_ends_a_node_and_is_not_shown(guarded: EtcdCluster, tmp_path: Path) -> None:
    nodes = NodesJob(tmp_path)
    nodes.etcd = guarded.endpoints
    try:
        nodes.agent(env={ETCD_USER: "me", ETCD_PASSWORD: "wr0ng-5ecret"})
        assert nodes.codes() == [2], nodes.transcript
        told = f"ftlaunch: cannot be the head: etcd at {guarded.endpoints}: authentication failed, invalid user ID"
        assert nodes.said(0).startswith(told)
        assert "wr0ng-5ecret" not in nodes.transcript
    finally:
        nodes.dispose()


def test_an_etcd_that_asks_nobody_says_that_it_wants_no_password(cluster: EtcdCluster) -> None:
    asked = EtcdClient(replace(cluster.spec, user="me", password="5ecret"))
    with pytest.raises(EtcdRefused, match="authentication is not enabled"):
        asked.ask(messages.RANGE, READ)


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made_by_openssl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem; server.pem and node.pem, with their keys, which it has signed; other.pem, which is its own."""
    home = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=home, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    (home / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth")
    for name in ("server", "node"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    return home


@pytest.fixture
def secured(made_by_openssl: Path) -> Iterator[EtcdSpec]:
    """A member that wants certificates of its clients; and a client that has one."""
    home = made_by_openssl
    options = ("--cert-file", f"{home}/server.pem", "--key-file", f"{home}/server.key", "--client-cert-auth",
               "--trusted-ca-file", f"{home}/ca.pem")  # fmt: skip
    with etcd_cluster(1, options) as made:
        files = (f"{home}/{name}" for name in ("ca.pem", "node.pem", "node.key"))
        spec = EtcdSpec(made.spec.members, True, *files)
        assert EtcdClaims(EtcdClient(spec), "j").newest() is None
        yield spec


def test_both_sides_show_certificates(secured: EtcdSpec) -> None:
    assert EtcdClaims(EtcdClient(secured), "j").claim(SIGN)


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(secured: EtcdSpec, made_by_openssl: Path) -> None:
    for cacert in (None, f"{made_by_openssl}/other.pem"):
        with pytest.raises(EtcdRefused, match=r"its certificate cannot be trusted: .*certificate"):
            EtcdClient(replace(secured, cacert=cacert)).ask(messages.RANGE, READ, patience_seconds=60.0)


def test_a_member_that_has_another_name_than_its_certificate_is_refused(secured: EtcdSpec) -> None:
    named = replace(secured, members=(("localhost", secured.members[0][1]),))
    with pytest.raises(EtcdRefused, match="Hostname mismatch, certificate is not valid for 'localhost'"):
        EtcdClient(named).ask(messages.RANGE, READ, patience_seconds=60.0)


def test_a_node_without_a_certificate_gets_no_answer(secured: EtcdSpec) -> None:
    for spec in (replace(secured, cert=None, key=None), EtcdSpec(secured.members)):
        with pytest.raises(OSError, match=str(secured)):
            EtcdClient(spec).ask(messages.RANGE, READ)


@pytest.mark.parametrize(
    ("files", "named"), [({"cacert": "/none"}, "cacert in /none"), ({"cert": "/c", "key": "/k"}, "cert in /c and /k")]
)
def test_a_file_that_is_not_there_is_named(secured: EtcdSpec, files: dict[str, str], named: str) -> None:
    with pytest.raises(EtcdRefused, match=f"the {named} cannot be used: No such file or directory"):
        EtcdClient(replace(secured, **files)).ask(messages.RANGE, READ)
