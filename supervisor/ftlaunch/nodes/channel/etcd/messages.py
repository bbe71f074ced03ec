"""Requests to etcd's JSON gateway, and what its answers say. Pure.

Keys and values are base64 in it, and whole numbers of 64 bits are text. A field of no, zero or empty value is left
out of an answer.

Everything that a job writes is its sign, under one key. A sign is written behind its term, whose digits are always as
many: so etcd itself can compare terms, as it compares values byte by byte.
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

RANGE, TXN = "/v3/kv/range", "/v3/kv/txn"
GRANT, KEEP_ALIVE = "/v3/lease/grant", "/v3/lease/keepalive"
AUTHENTICATE = "/v3/auth/authenticate"
_DIGITS = 20
_NEWEST_CODE = 16  # of gRPC


class Found(NamedTuple):
    """What etcd has under the key."""

    sign: Sign | None
    """None where nobody has written one"""
    revision: int
    """how many changes etcd has seen by now: it never falls"""


class GrpcStatus(NamedTuple):
    """etcd's own words on why it does not do something."""

    code: int
    """of gRPC"""
    why: str


def key_of(job: str) -> str:
    """The key of a job's sign, as the gateway wants it."""
    return _text(f"ftlaunch/{job}/sign".encode())


def read(key: str) -> dict[str, Any]:
    """The request for what is under a key, as a majority of the members has it."""
    return {"key": key}


def found(answer: Mapping[str, Any]) -> Found:
    """The answer to `read`. Raises ValueError."""
    header = untrusted_json.mapping(answer.get("header"), "the header of an answer")
    return Found(_sign(answer), number(header.get("revision"), "a revision"))


def write_if_newest(key: str, sign: Sign, below: int, lease: int | None) -> dict[str, Any]:
    """The request to write a sign where none is of a term from `below` on; else to read what is there."""
    put = {"requestPut": {"key": key, "value": _text(_value(sign)), "lease": str(lease or 0)}}
    older = {"key": key, "target": "VALUE", "result": "LESS", "value": _text(_term(below))}
    none = {
        "key": key,
        "target": "VERSION",
        "result": "EQUAL",
        "version": "0",
    }  # a value that is not there compares never
    else_read = {"compare": [none], "success": [put], "failure": [{"requestRange": read(key)}]}
    return {"compare": [older], "success": [put], "failure": [{"requestTxn": else_read}]}


def newer(answer: Mapping[str, Any]) -> Sign | None:
    """The answer to `write_if_newest`: None where the sign was written, else what is there. Raises ValueError."""
    if answer.get("succeeded"):
        return None
    nested = _first(answer, "response_txn")
    if nested.get("succeeded"):
        return None
    there = _sign(_first(nested, "response_range"))
    if there is None:
        raise ValueError("etcd has neither written a sign nor found one")
    return there


def number(value: object, what: str) -> int:
    """A whole number as the gateway writes it. Raises ValueError."""
    text = untrusted_json.text(value, what)
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        raise ValueError(f"{what} is not a whole number")
    return int(text)


def granted(answer: Mapping[str, Any]) -> int:
    """The lease that etcd has granted. Raises ValueError."""
    return number(answer.get("ID"), "the number of a lease")


def status(content: bytes) -> GrpcStatus | None:
    """What etcd says instead of an answer; None where that is not etcd's."""
    try:
        told = untrusted_json.mapping(untrusted_json.parse(content), "an error")
        code = untrusted_json.whole(told.get("code"), "its code")
        why = untrusted_json.text(told.get("message", told.get("error")), "its message")
    except ValueError:
        return None
    return GrpcStatus(code, why.removeprefix("etcdserver: ")[:200]) if 0 < code <= _NEWEST_CODE else None


def _first(answer: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    responses = answer.get("responses")
    if not isinstance(responses, list) or len(responses) != 1 or not isinstance(responses[0], dict):
        raise ValueError("etcd has not answered a transaction in full")
    return untrusted_json.mapping(responses[0].get(kind), "the answer to a part of a transaction")


def _sign(answer: Mapping[str, Any]) -> Sign | None:
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


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
