"""Whatever stands in a file of JSON: a reader gets the value, or a ValueError."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch_contract.files import untrusted_json

# few characters, and all that matter
TEXT = st.text(
    st.sampled_from('wa0/.\0"\\\u00e9\u2028\U0001f600\ud800'), max_size=300
)  # few characters, all that matter
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=10
)


@given(st.binary())
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    try:
        untrusted_json.parse(data)
    except ValueError as error:
        assert str(error)


@given(VALUES)
def test_a_value_comes_back_as_it_was_written_unless_it_is_no_json(value: Any) -> None:
    text = json.dumps(value).encode()
    if _is_finite(value):
        assert untrusted_json.parse(text) == value
    else:
        with pytest.raises(ValueError, match="is not a number of JSON"):
            untrusted_json.parse(text)


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(_is_finite(inner) for inner in value)
    return not isinstance(value, dict) or all(_is_finite(inner) for inner in value.values())


@given(TEXT, st.integers(), st.integers())
def test_a_key_that_stands_twice_is_refused(key: str, one: int, other: int) -> None:
    name = json.dumps(key)
    with pytest.raises(ValueError, match="a key stands twice in it"):
        untrusted_json.parse(f"[{{{name}: {one}, {name}: {other}}}]".encode())


@given(VALUES, st.integers(0, 3))
def test_a_checked_value_is_of_its_kind(value: Any, least: int) -> None:
    checks = {
        untrusted_json.mapping: lambda found: isinstance(found, dict),
        untrusted_json.text: lambda found: isinstance(found, str),
        untrusted_json.extents: lambda found: isinstance(found, tuple) and all(type(n) is int for n in found),
    }
    for check, is_kind in checks.items():
        try:
            assert is_kind(check(value, "it"))
        except ValueError as error:
            assert str(error).startswith("it is not")
    try:
        number = untrusted_json.whole(value, "it", least)
    except ValueError:
        assert type(value) is not int or not least <= value < 2**63
    else:
        assert type(number) is int
        assert least <= number < 2**63


@given(TEXT)
def test_a_plain_name_cannot_leave_its_directory(name: str) -> None:
    try:
        assert untrusted_json.plain_name(name) == name
    except ValueError:
        return
    assert name not in ("", ".", "..")
    assert not {"/", "\0"} & set(name)
