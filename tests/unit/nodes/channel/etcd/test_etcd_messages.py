"""What is said to etcd's JSON gateway, and what its answers may be."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.channel.etcd import messages

SIGN = Sign(term=12, address="10.0.0.1", port=29400, machine="a machine", pid=7, started=70, count=0)
KEY = messages.key_of("job-1")


def value_of(sign: Sign) -> bytes:
    """What is written for a sign."""
    (put,) = messages.build_write_if_newest(KEY, sign, 1, None)["success"]
    return base64.b64decode(put["requestPut"]["value"])


def there(value: object) -> dict[str, Any]:
    """An answer to a read."""
    return {"header": {"revision": "44"}, "kvs": [{"value": value}]}


def test_a_sign_comes_back_as_it_was_written() -> None:
    assert base64.b64decode(KEY) == b"ftlaunch/job-1/sign"
    told = there(base64.b64encode(value_of(SIGN)).decode())
    assert messages.parse_found(told) == (SIGN, 44)
    assert messages.parse_found({"header": {"revision": "9"}, "count": "0"}) == (None, 9)


@given(st.integers(1, 2**62), st.integers(1, 2**62))
def test_etcd_compares_terms_as_numbers_are_compared(one: int, other: int) -> None:
    """Taken out (the digits are not always as many): term 9 counts as newer than term 10."""
    value = value_of(replace(SIGN, term=one))
    (older,) = messages.build_write_if_newest(KEY, SIGN, other, None)["compare"]
    assert (value < base64.b64decode(older["value"])) == (one < other)


def test_whole_numbers_of_64_bits_are_text() -> None:
    (put,) = messages.build_write_if_newest(KEY, SIGN, 12, 2**62)["success"]
    assert put["requestPut"]["lease"] == str(2**62)
    assert messages.parse_lease({"ID": "7587883"}) == 7587883


@pytest.mark.parametrize("number", [None, 7, "", "-1", "1.0", "0x1", "٣", "9" * 30])
def test_what_is_no_such_number_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="number of a lease is not"):
        messages.parse_lease({"ID": number})


def test_what_stands_against_a_sign_is_told() -> None:
    kvs = {"kvs": [{"value": base64.b64encode(value_of(SIGN)).decode()}]}
    read = {"responses": [{"response_range": kvs}]}
    assert messages.parse_newer({"responses": [{"response_txn": read}]}) == SIGN
    assert messages.parse_newer({"responses": [{"response_txn": {"succeeded": True}}]}) is None
    assert messages.parse_newer({"succeeded": True}) is None


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"responses": []}, {"responses": {}}, {"responses": [1]}, {"responses": [{}]},
        {"responses": [{"response_txn": {}}]},
        {"responses": [{"response_txn": {"responses": [{"response_range": {}}]}}]},
    ],
)  # fmt: skip
def test_half_a_transaction_is_no_answer(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        messages.parse_newer(answer)


@pytest.mark.parametrize(
    "value",
    [None, 7, "", "no base64!", base64.b64encode(b"x" * 40).decode(), base64.b64encode(value_of(SIGN)[:-1]).decode(),
     base64.b64encode(value_of(SIGN)[1:]).decode(), base64.b64encode(b"%020d" % 13 + value_of(SIGN)[20:]).decode()],
)  # fmt: skip
def test_what_is_no_sign_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        messages.parse_found(there(value))


@given(st.binary(max_size=100))
def test_whatever_answers_instead_of_etcd_is_no_status_of_its(content: bytes) -> None:
    assert messages.parse_status(content) is None


def test_etcds_own_words_are_told() -> None:
    told = {"error": "etcdserver: user name is empty", "message": "etcdserver: user name is empty", "code": 3}
    assert messages.parse_status(json.dumps(told).encode()) == (3, "user name is empty")
    assert messages.parse_status(b'{"code": 14, "message": "no leader"}') == (14, "no leader")
    assert messages.parse_status(b'{"code": 404, "message": "not found"}') is None, "some other server's"
