"""Builds requests to etcd's JSON gateway, and reads its answers. Pure.

In the gateway's JSON, keys and values are base64, and 64-bit integers are text. An answer lacks fields that are empty
or zero.

A job writes only its sign, under one key. The value begins with the term, in a fixed number of digits. Etcd compares
values byte by byte, and can therefore compare terms.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ftlaunch.nodes.channel import claims
from ftlaunch.nodes.channel.claims import Sign
from ftlaunch_contract.files import untrusted_json

RANGE = "/v3/kv/range"
TXN = "/v3/kv/txn"
GRANT = "/v3/lease/grant"
KEEP_ALIVE = "/v3/lease/keepalive"
AUTHENTICATE = "/v3/auth/authenticate"
_DIGITS = 20  # of a term before the sign; a 64-bit integer has no more
_HIGHEST_CODE = 16  # of gRPC


class Found(NamedTuple):
    """What etcd holds under the key of a job."""

    sign: Sign | None
    """the sign, or None if there is none"""
    revision: int
    """the number of changes that etcd has seen; never falls"""


class GrpcStatus(NamedTuple):
    """etcd's reason for refusing a request."""

    code: int
    """the code of gRPC"""
    why: str
    """etcd's message"""


def key_of(job: str) -> str:
    """Return the key of a job's sign, in base64."""
    return _base64(f"ftlaunch/{job}/sign".encode())


def build_read(key: str) -> dict[str, Any]:
    """Return the request for the value of a key, as a majority of the members has it."""
    return {"key": key}


def parse_found(answer: Mapping[str, Any]) -> Found:
    """Return what the answer to `build_read` holds. Raises ValueError if it is malformed."""
    header = untrusted_json.mapping(answer.get("header"), "the header of an answer")
    return Found(_parse_sign(answer), parse_number(header.get("revision"), "a revision"))


def build_write_if_newest(key: str, sign: Sign, below: int, lease: int | None) -> dict[str, Any]:
    """Return the request to write a sign unless the key holds one with a term of at least `below`.

    If the key holds such a sign, the request reads that sign instead.

    Args:
        key: the key, from `key_of`.
        sign: the sign to write.
        below: the limit for the term of the present sign.
        lease: the lease of the key, or None for a key that stays.
    """
    put = {"requestPut": {"key": key, "value": _base64(_value(sign)), "lease": str(lease or 0)}}
    older = {"key": key, "target": "VALUE", "result": "LESS", "value": _base64(_term(below))}
    # A missing key never satisfies a comparison of values; its version is 0.
    none = {
        "key": key,
        "target": "VERSION",
        "result": "EQUAL",
        "version": "0",
    }
    else_read = {"compare": [none], "success": [put], "failure": [{"requestRange": build_read(key)}]}
    return {"compare": [older], "success": [put], "failure": [{"requestTxn": else_read}]}


def parse_newer(answer: Mapping[str, Any]) -> Sign | None:
    """Return the newer sign in the answer to `build_write_if_newest`.

    Returns:
        None if the sign was written, else the sign that the key holds.

    Raises:
        ValueError: the answer is malformed.
    """
    if answer.get("succeeded"):
        return None
    nested = _first(answer, "response_txn")
    if nested.get("succeeded"):
        return None
    there = _parse_sign(_first(nested, "response_range"))
    if there is None:
        raise ValueError("etcd has neither written a sign nor found one")
    return there


def parse_number(value: object, what: str) -> int:
    """Return the integer that the gateway has written as text. Raises ValueError; `what` names the value."""
    text = untrusted_json.text(value, what)
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        raise ValueError(f"{what} is not a whole number")
    return int(text)


def parse_lease(answer: Mapping[str, Any]) -> int:
    """Return the lease that etcd has granted. Raises ValueError if the answer is malformed."""
    return parse_number(answer.get("ID"), "the number of a lease")


def parse_status(content: bytes) -> GrpcStatus | None:
    """Return etcd's reason for refusing a request, or None if `content` is not etcd's."""
    try:
        error = untrusted_json.mapping(untrusted_json.parse(content), "an error")
        code = untrusted_json.whole(error.get("code"), "its code")
        why = untrusted_json.text(error.get("message", error.get("error")), "its message")
    except ValueError:
        return None
    if not 0 < code <= _HIGHEST_CODE:
        return None
    return GrpcStatus(code, why.removeprefix("etcdserver: ")[:200])


def _first(answer: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    responses = answer.get("responses")
    if not isinstance(responses, list) or len(responses) != 1 or not isinstance(responses[0], dict):
        raise ValueError("etcd has not answered a transaction in full")
    return untrusted_json.mapping(responses[0].get(kind), "the answer to a part of a transaction")


def _parse_sign(answer: Mapping[str, Any]) -> Sign | None:
    pairs = answer.get("kvs", [])
    if not isinstance(pairs, list):
        raise ValueError("the keys that were found are not a list")
    if not pairs:
        return None
    value = untrusted_json.mapping(pairs[0], "a key that was found").get("value")
    try:
        content = base64.b64decode(untrusted_json.text(value, "a value"), validate=True)
    except binascii.Error:
        raise ValueError("a value is not base64") from None
    sign = claims.parse(content[_DIGITS:])
    if content[:_DIGITS] != _term(sign.term):
        raise ValueError("the sign of the head is of another term than its beginning says")
    return sign


def _value(sign: Sign) -> bytes:
    return _term(sign.term) + json.dumps(vars(sign)).encode()


def _term(term: int) -> bytes:
    return b"%0*d" % (_DIGITS, term)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
