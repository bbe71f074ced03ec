"""A client of etcd: asks the members in turn until one answers, beginning with the one that answered last.

A request may be carried out although no answer comes, and may be carried out twice. Callers must send only requests for
which both are harmless. Calls wait for the network.
"""

from __future__ import annotations

import errno
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any

from ftlaunch.nodes.channel.etcd import messages
from ftlaunch.nodes.channel.etcd.member import EtcdMember
from ftlaunch.nodes.channel.etcd.messages import AUTHENTICATE
from ftlaunch.spec.meeting_stores.etcd import EtcdSpec
from ftlaunch.spec.parsers import Endpoint
from ftlaunch_contract.files import untrusted_json

ANSWER_SECONDS = 1.0
"""seconds that one member has for one answer, including the connection; less than the time after which a head counts as
gone"""
_PAUSE_SECONDS = 0.1  # between two rounds through all members
_OK = 200
# Codes of gRPC.
_INVALID = 3
_NOT_FOUND = 5
_DENIED = 7
_FAILED = 9
_UNIMPLEMENTED = 12
_UNKNOWN_TOKEN = 16
# Codes with which a repeated request would fail again.
_FINAL = {_INVALID, _NOT_FOUND, _DENIED, _FAILED, _UNIMPLEMENTED, _UNKNOWN_TOKEN}


class EtcdSilent(OSError):
    """No member answers or can carry out the request at the moment. `filename` names etcd, and `strerror` says why."""


class EtcdRefused(OSError):
    """etcd refuses the request, and would do so again. `filename` names etcd, and `strerror` says why."""

    def __init__(self, why: str, where: str, code: int = 0) -> None:
        super().__init__(errno.EACCES, why, where)
        self.code = code
        """the code of gRPC; 0 if the refusal is not etcd's own"""

    @property
    def lost(self) -> bool:
        """Whether something that the request names no longer exists."""
        return self.code == _NOT_FOUND


class _NoEtcd(ValueError):
    """The server at a member's address is not etcd."""


class EtcdClient:
    """Sends requests to the members of one etcd. For one thread at a time."""

    def __init__(self, spec: EtcdSpec) -> None:
        self.where = f"etcd at {spec}"
        """names etcd, for people"""
        self._spec = spec
        self._members: list[EtcdMember] = []
        self._names = [str(Endpoint(host, port)) for host, port in spec.members]
        self._first = 0  # the index of the member that answered last
        self._token = ""  # of the user, as etcd has given it out

    def ask(self, path: str, request: Mapping[str, Any], patience_seconds: float = 0.0) -> dict[str, Any]:
        """Return etcd's answer to a request.

        Each member is asked at least once, for at most ANSWER_SECONDS at a time.

        Args:
            path: the path of the JSON gateway.
            request: the body.
            patience_seconds: seconds for which the members are asked again after failures.

        Raises:
            EtcdSilent: no member has answered within `patience_seconds`.
            EtcdRefused: etcd refuses the request.
        """
        until = time.monotonic() + patience_seconds
        while True:
            problems: dict[str, Exception] = {}
            for index in self._in_turn():
                try:
                    answer = self._ask_member(index, path, request)
                except (OSError, http.client.HTTPException, ValueError) as error:
                    if isinstance(error, EtcdRefused):
                        raise
                    problems[self._names[index]] = error
                else:
                    self._first = index
                    return answer
            why = "; ".join(f"{name}: {_reason(error)}" for name, error in problems.items())
            if all(isinstance(error, (_NoEtcd, ssl.SSLCertVerificationError)) for error in problems.values()):
                raise EtcdRefused(why, self.where)
            if time.monotonic() >= until:
                raise EtcdSilent(errno.EHOSTUNREACH, why, self.where)
            time.sleep(_PAUSE_SECONDS)

    def _in_turn(self) -> list[int]:
        """Return the indices of the members, beginning with the one that answered last."""
        if not self._members:
            tls = self._tls() if self._spec.tls else None
            self._members = [EtcdMember(host, port, tls) for host, port in self._spec.members]
        numbers = list(range(len(self._members)))
        return numbers[self._first :] + numbers[: self._first]

    def _tls(self) -> ssl.SSLContext:
        """Return the TLS settings. Raises EtcdRefused if the certificates cannot be used."""
        spec = self._spec
        used = "cacert"
        try:
            context = ssl.create_default_context(cafile=spec.cacert)
            used = "cert"
            if spec.cert is not None:
                context.load_cert_chain(spec.cert, spec.key)
        except OSError as error:  # includes ssl.SSLError
            files = spec.cacert if used == "cacert" else " and ".join(filter(None, (spec.cert, spec.key)))
            raise EtcdRefused(f"the {used} in {files} cannot be used: {error.strerror or error}", self.where) from None
        return context

    def _ask_member(self, index: int, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return one member's answer, after logging in if the spec names a user."""
        spec = self._spec
        if spec.user is None:
            return self._post(index, path, request)
        had_token = bool(self._token)
        if not had_token:
            self._authenticate(index)
        try:
            return self._post(index, path, request)
        except EtcdRefused as error:
            if not had_token or error.code not in (_UNKNOWN_TOKEN, _INVALID):
                raise
        self._authenticate(index)  # etcd forgets tokens after some minutes, and when users change
        return self._post(index, path, request)

    def _authenticate(self, index: int) -> None:
        self._token = ""
        credentials = {"name": self._spec.user, "password": self._spec.password}
        answer = self._post(index, AUTHENTICATE, credentials)
        self._token = untrusted_json.text(answer.get("token"), "the token that etcd gives out")

    def _post(self, index: int, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        status, content = self._members[index].post(
            path=path, content=json.dumps(request).encode(), headers=headers, seconds=ANSWER_SECONDS
        )
        if status == _OK:
            try:
                return untrusted_json.mapping(untrusted_json.parse(content), "an answer")
            except ValueError:
                raise _NoEtcd("what it answers is not etcd's") from None
        refusal = messages.parse_status(content)
        if refusal is None:
            raise _NoEtcd(f"it answers HTTP {status}, as no etcd does from 3.4 on")
        if refusal.code in _FINAL:
            raise EtcdRefused(refusal.why, self.where, refusal.code)
        raise OSError(errno.EAGAIN, refusal.why)


def _reason(error: Exception) -> str:
    """Return why a member has not answered, as a clause for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be trusted: {error.verify_message}"
    if isinstance(error, http.client.HTTPException):
        return "it does not speak HTTP"
    if isinstance(error, TimeoutError):
        return "no answer"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]
