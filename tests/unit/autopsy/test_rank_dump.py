"""The files of an autopsy as somebody has damaged them: each is refused with what is wrong, and no other error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.autopsy import rank_dump
from ftlaunch.autopsy.verdict import doing

FACTS: dict[str, Any] = {
    "pid": 7, "lock_held": False, "sources": {"/train.py:8": "with lock:"},
    "threads": [{"tid": 7, "state": "S", "syscall": "futex", "file": "", "wchan": "", "sleeps": False, "busy": 0.5}],
    "children": [{"pid": 9, "comm": "python", "state": "S", "stack": ""}],
}  # fmt: skip
RECORDER: dict[str, Any] = {"entries": [{"collective_seq_id": 3, "process_group": ["0", ""]}], "pg_config": {}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("facts", "recorder", "wrong"),
    [
        ({"threads": 5}, None, "`threads` is not a list of objects"),
        ({"threads": ["x"]}, None, "`threads` is not a list of objects"),
        ({"children": [None]}, None, "`children` is not a list of objects"),
        ({"children": [{"pid": "x"}]}, None, "`pid` of a child is not a whole number"),
        ({"sources": []}, None, "`sources` is not an object"),
        ({"sources": {"a:1": 2}}, None, "`a:1` is not text"),
        ({"pid": 1, "threads": [{"tid": 1, "state": ["S"]}]}, None, "`state` is not text"),
        ({"pid": 1, "threads": [{"tid": 1, "busy": "x"}]}, None, "`busy` is not a number"),
        ({"lock_held": "no"}, None, "`lock_held` is not true, false or null"),
        ({}, {"entries": 5}, "`entries` is not a list of objects"),
        ({}, {"entries": [[]]}, "`entries` is not a list of objects"),
    ],
)
def test_it_says_what_is_wrong(facts: dict[str, Any], recorder: dict[str, Any] | None, wrong: str) -> None:
    """Taken out: an AttributeError, which ended the supervisor's look at a hang."""
    with pytest.raises(ValueError, match=wrong):
        rank_dump.read(0, "", facts, recorder)


@given(st.data())
def test_any_value_in_any_place_is_read_or_refused(data: st.DataObject) -> None:
    facts, recorder = {**FACTS}, {**RECORDER}
    changed: dict[str, Any] = data.draw(st.sampled_from([facts, recorder]))
    name = data.draw(st.sampled_from(sorted(changed)))
    place: Any = changed
    if isinstance(changed[name], list) and data.draw(st.booleans()):
        changed[name] = [{**changed[name][0]}]
        place = changed[name][0]
        name = data.draw(st.sampled_from(sorted(place)))
    place[name] = data.draw(VALUES)
    try:
        found = rank_dump.read(0, "", facts, recorder)
    except ValueError:
        return
    assert isinstance(doing(found), str)
