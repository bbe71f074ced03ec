"""Whatever a job spec holds under `fault_rules`, it becomes rules, or is refused with the place of what is wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ftlaunch.common.signal_names import SIGNALS
from ftlaunch.policy.fault_rules import ACTIONS, HOWS, Facts, FaultRule
from ftlaunch.spec.errors import RefusedError, shown
from ftlaunch.spec.parsing.rule_parser import parse_rules

plain = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats() | st.text(max_size=20)
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain, inner, max_size=4))
keys = st.sampled_from(["exit", "signal", "exception", "error", "log", "kernel", "how", "class", "action", "meaning"])
# words that come near to what is allowed
likely = st.sampled_from(
    ["any", "1", "SIGKILL", "ValueError", "link (up|down)", "(a+)+", "(?L)x", "[", "network", *HOWS, *ACTIONS, "true"]
)
nearly = st.dictionaries(keys, likely | values, max_size=6)
patterns = st.text(alphabet="abx()[]{}|*+?\\^$.,:<!=PLiasmu019-", max_size=15)


@given(st.lists(nearly | values, max_size=3) | values)
@example([{"log": "(?L)x", "class": "network", "action": "wait"}])
@example([{"log": "(?au)x", "class": "network", "action": "wait"}])
def test_any_value_is_read_or_refused(raw: object) -> None:
    assert_read_or_refused(raw)


@given(patterns)
def test_any_pattern_is_read_or_refused(pattern: str) -> None:
    assert_read_or_refused([{"log": pattern, "class": "network", "action": "wait"}])


def assert_read_or_refused(raw: object) -> None:
    try:
        rules = parse_rules(raw)
    except RefusedError as refused:
        assert refused.allowed is None or isinstance(refused.allowed, str)
        assert not refused.at or refused.at.startswith("[")
        assert shown(refused.given).isprintable()
    else:
        assert isinstance(raw, list)
        assert [rule.row()["class"] for rule in rules] == [row["class"] for row in raw]
        assert parse_rules([rule.row() for rule in rules]) == rules, "a spec that is printed is read again"
        for rule in rules:
            rule.fits(Facts(exit=1, error="some text", log="line\nline", kernel="x"))


@st.composite
def sound(draw: st.DrawFn) -> dict[str, Any]:
    """A rule that must be taken."""
    looks = {
        "exit": st.integers(1, 255) | st.just("any"),
        "signal": st.sampled_from([*SIGNALS.values(), "any"]),
        "exception": st.sampled_from(["ValueError", "torch.OutOfMemoryError", "any"]),
        "log": st.sampled_from(["link down", "NCCL .* timeout", "^x$"]),
    }
    names = draw(st.sets(st.sampled_from(sorted(looks)), min_size=1))
    row: dict[str, Any] = {name: draw(looks[name]) for name in sorted(names)}
    return row | {"class": draw(st.from_regex(r"\A[a-z][a-z0-9-]{0,8}\Z")), "action": draw(st.sampled_from(ACTIONS))}


@given(st.lists(sound().filter(lambda row: row["class"] not in HOWS), max_size=4))
def test_sound_rules_are_taken_as_they_are_written(rows: list[dict[str, Any]]) -> None:
    rules = parse_rules(rows)
    assert all(isinstance(rule, FaultRule) for rule in rules)
    assert [rule.row() for rule in rules] == [{**row} for row in rows]
