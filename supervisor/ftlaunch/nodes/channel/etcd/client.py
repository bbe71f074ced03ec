"""Asks the members of an etcd in turn, beginning with the one that has answered last, until one of them answers.

What is asked may be done although no answer comes, and may be done twice: nothing may be asked that does harm then.
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
from ftlaunch.spec.nodes.etcd import EtcdSpec
from ftlaunch.spec.parsers import Endpoint
from ftlaunch_contract.files import untrusted_json

ANSWER = 1.0
"""seconds that one member has for one answer, its connection included: less than after which a head counts as gone"""
_PAUSE = 0.1  # seconds between two rounds of all members
_OK = 200
_INVALID, _NOT_FOUND, _DENIED, _FAILED, _UNIMPLEMENTED, _UNKNOWN_TOKEN = 3, 5, 7, 9, 12, 16  # of gRPC
_FINAL = {_INVALID, _NOT_FOUND, _DENIED, _FAILED, _UNIMPLEMENTED, _UNKNOWN_TOKEN}


class EtcdSilent(OSError):
    """No member does what it is asked, at least for now; `filename` names etcd, and `strerror` says why."""


class EtcdRefused(OSError):
    """etcd does not do it, and would not a second time; likewise."""

    def __init__(self, why: str, where: str, code: int = 0) -> None:
        super().__init__(errno.EACCES, why, where)
        self.code = code
        """of gRPC; 0: these are not etcd's own words"""

    @property
    def lost(self) -> bool:
        """Whether something that the request names is not there any more."""
        return self.code == _NOT_FOUND


class _NoEtcd(ValueError):
    """What answers at a member's address is none."""


class EtcdClient:
    """Not for two threads at a time."""

    def __init__(self, spec: EtcdSpec) -> None:
        self.where = f"etcd at {spec}"
        """for people"""
        self._spec = spec
        self._members: list[EtcdMember] = []
        self._names = [str(Endpoint(*member)) for member in spec.members]
        self._first = 0  # which has answered last
        self._token = ""

    def ask(self, path: str, request: Mapping[str, Any], patience: float = 0.0) -> dict[str, Any]:
        """The answer. Raises EtcdSilent, where nobody has one for `patience` seconds, or EtcdRefused.

        Each member is asked once at the least, for ANSWER seconds at the most.
        """
        until = time.monotonic() + patience
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
            time.sleep(_PAUSE)

    def _in_turn(self) -> list[int]:
        if not self._members:
            tls = self._tls() if self._spec.tls else None
            self._members = [EtcdMember(host, port, tls) for host, port in self._spec.members]
        numbers = list(range(len(self._members)))
        return numbers[self._first :] + numbers[: self._first]

    def _tls(self) -> ssl.SSLContext:
        spec = self._spec
        used = "cacert"
        try:
            context = ssl.create_default_context(cafile=spec.cacert)
            used = "cert"
            if spec.cert is not None:
                context.load_cert_chain(spec.cert, spec.key)
        except OSError as error:  # an ssl.SSLError, too
            files = spec.cacert if used == "cacert" else " and ".join(filter(None, (spec.cert, spec.key)))
            raise EtcdRefused(f"the {used} in {files} cannot be used: {error.strerror or error}", self.where) from None
        return context

    def _ask_member(self, index: int, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        spec = self._spec
        if spec.user is None:
            return self._post(index, path, request)
        known = bool(self._token)
        if not known:
            self._authenticate(index)
        try:
            return self._post(index, path, request)
        except EtcdRefused as error:
            if not known or error.code not in (_UNKNOWN_TOKEN, _INVALID):
                raise
        self._authenticate(index)  # tokens are forgotten after some minutes, and when users change
        return self._post(index, path, request)

    def _authenticate(self, index: int) -> None:
        self._token = ""
        who = {"name": self._spec.user, "password": self._spec.password}
        answer = self._post(index, AUTHENTICATE, who)
        self._token = untrusted_json.text(answer.get("token"), "the token that etcd gives out")

    def _post(self, index: int, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        status, content = self._members[index].post(path, json.dumps(request).encode(), headers, ANSWER)
        if status == _OK:
            try:
                return untrusted_json.mapping(untrusted_json.parse(content), "an answer")
            except ValueError:
                raise _NoEtcd("what it answers is not etcd's") from None
        refusal = messages.status(content)
        if refusal is None:
            raise _NoEtcd(f"it answers HTTP {status}, as no etcd does from 3.4 on")
        if refusal.code in _FINAL:
            raise EtcdRefused(refusal.why, self.where, refusal.code)
        raise OSError(errno.EAGAIN, refusal.why)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be trusted: {error.verify_message}"
    if isinstance(error, http.client.HTTPException):
        return "it does not speak HTTP"
    if isinstance(error, TimeoutError):
        return "no answer"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]
