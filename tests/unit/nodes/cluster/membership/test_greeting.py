"""Which nodes may take part: those that would train the same as the others."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.nodes.cluster.membership import facts, greeting
from ftlaunch.nodes.cluster.membership.facts import NodeFacts
from ftlaunch.nodes.cluster.membership.fingerprint import job_of
from ftlaunch.nodes.cluster.membership.greeting import Greeting
from ftlaunch.spec.resolve import resolve

HEAD = NodeFacts("0.1", "3.11.4", "2.13.0", "abc", "first/1")
NODE = replace(HEAD, machine="second/2")


def test_a_node_like_the_heads_may_take_part() -> None:
    assert greeting.refusal("job", "job", NODE, HEAD) == ""
    assert greeting.warnings(Greeting(NODE, -1, {}, 159.0, []), HEAD, 100.0) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"torch": "2.12.1"}, "torch is 2.12.1 on second, and 2.13.0 on first, where the head of the job runs"),
        ({"torch": ""}, "torch is not known on second, and 2.13.0 on first"),
        ({"ftlaunch": "0.2"}, "ftlaunch is 0.2 on second, and 0.1 on first"),
        ({"python": "3.12.4"}, "Python is 3.12 on second, and 3.11 on first"),
        ({"script": "def"}, "the script is not the one with which the job was started: its digest is def on second"),
    ],
)
def test_one_that_would_train_something_else_is_refused_with_both_values(other: dict[str, str], words: str) -> None:
    assert greeting.refusal("job", "job", replace(NODE, **other), HEAD).startswith(words)


def test_what_may_differ_is_warned_of() -> None:
    other = replace(NODE, python="3.11.9")
    assert greeting.refusal("job", "job", other, HEAD) == ""
    assert greeting.warnings(Greeting(other, -1, {}, 25.0, ["memory: none"]), HEAD, 100.0) == [
        "warning: second: memory: none",
        "warning: Python is 3.11.9 on second, and 3.11.4 on first",
        "warning: the clock of second is 75 s behind that of first: times in logs and of files will differ, and"
        " nothing else",
    ]


HELLO = {"held": [2, 2], "slots": {"2": [7, 8]}, "facts": NODE.as_dict(), "wall": 1.5, "warnings": ["memory: none"]}


def test_a_hello_is_read() -> None:
    found = greeting.read(HELLO, 2, 2)
    assert found == Greeting(NODE, 1, {2: [7, 8]}, 1.5, ["memory: none"])


@pytest.mark.parametrize(
    "wrong",
    [{"facts": {}}, {"facts": {**NODE.as_dict(), "torch": 2}}, {"facts": {**NODE.as_dict(), "machine": "x" * 301}},
     {"wall": float("inf")}, {"wall": 10**400}, {"slots": {"2": [float("inf")]}},
     {"warnings": [1]}, {"warnings": ["x" * 401]}, {"warnings": [""] * 9}],
)  # fmt: skip
def test_nonsense_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        greeting.read({**HELLO, **wrong}, 2, 2)


def test_facts_are_those_with_which_the_node_was_started(tmp_path: Path) -> None:
    """Taken out: a head that is forked later would refuse the nodes that run on, were the script edited meanwhile."""
    script = tmp_path / "train.py"
    script.write_text("one")
    flags = {"nnodes": "2", "rdzv_endpoint": "h:1", "run_dir": str(tmp_path / "run"), "job_id": "j"}
    spec = resolve(str(script), [], flags, {})
    first = facts.gather(spec)
    script.write_text("two")
    assert facts.gather(spec) == first
    (tmp_path / "other.py").write_text("two")
    other = facts.gather(resolve(str(tmp_path / "other.py"), [], flags, {}))
    assert other.script != first.script
    assert first.torch
    assert first.python == ".".join(map(str, sys.version_info[:3]))


def test_long_commands_that_differ_at_their_end_are_two(tmp_path: Path) -> None:
    """Taken out: the words are cut, and both are the same job."""
    (tmp_path / "train.py").touch()
    flags = {"nnodes": "2", "rdzv_endpoint": "h:1", "run_dir": str(tmp_path / "run"), "job_id": "j"}
    one, two = (resolve(str(tmp_path / "train.py"), ["x" * 500, end], flags, {}) for end in ("a", "b"))
    assert job_of(one) != job_of(two)
    assert len(job_of(one)) < 450
