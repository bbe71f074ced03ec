"""Parses fault rules: those of a job, and the built-in ones, which are read from a file.

The parsers of fields take what YAML held and the place in the rules, and raise RefusedError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import ftlaunch
from ftlaunch.common.signal_names import SIGNALS
from ftlaunch.policy.fault_rules import ACTIONS, ANY, CONDITIONS, HOWS, FaultRule
from ftlaunch.spec.errors import RefusedError, did_you_mean

_NAME = "fault_rules.yaml"
_KEYS = (*CONDITIONS, "before_first_step", "class", "action", "meaning")
_LONGEST = 500  # characters of a pattern


def builtin() -> tuple[FaultRule, ...]:
    """Return the rules that come with ftlaunch. Raises OSError."""
    path = Path(ftlaunch.__file__).with_name(_NAME)  # where a wheel puts the file
    if not path.exists():
        path = Path(ftlaunch.__file__).parents[2] / "configs" / _NAME
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml takes a tenth of the time, if PyYAML has it
    return parse_rules(yaml.load(path.read_text(encoding="utf-8"), Loader=loader))  # noqa: S506 - both are safe


def parse_rules(raw: object) -> tuple[FaultRule, ...]:
    """Parse a list of mappings.

    Raises:
        RefusedError: a rule is not allowed; the error says which.
    """
    if not isinstance(raw, list):
        raise RefusedError
    return tuple(_rule(entry, f"[{number}]") for number, entry in enumerate(raw))


def _rule(raw: object, at: str) -> FaultRule:
    """Parse one rule, which stands at `at` below the key."""
    if not isinstance(raw, dict):
        raise RefusedError("it must be a mapping such as {log: 'link down', class: network, action: wait}", at, raw)
    for name in raw:
        if name not in _KEYS:
            hint = did_you_mean(str(name), _KEYS) or f"; the keys are {', '.join(_KEYS)}"
            raise RefusedError(f"it is no key of a rule{hint}", f"{at}.{name}", raw[name])
    for name in ("class", "action"):
        if name not in raw:
            raise RefusedError(f"it must have a `{name}`", at, raw)
    if not any(name in raw for name in CONDITIONS):
        raise RefusedError(f"it must say where to look: one of {', '.join(CONDITIONS)}", at, raw)
    if (raw["class"] if raw["class"] in HOWS else None) != raw.get("how"):
        raise RefusedError(f"`how` and `class` must be the same: {', '.join(HOWS)}", f"{at}.class", raw["class"])
    values = {}
    for name, value in raw.items():
        field = "kind" if name == "class" else name
        values[field] = _PARSERS[name](value, f"{at}.{name}")
    return FaultRule(**values)


def _text(raw: object, at: str) -> str:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        raise RefusedError("it must be text on one line", at, raw)
    return raw


def _word(raw: object, at: str) -> str:
    if not isinstance(raw, str) or not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", raw):
        raise RefusedError("it must be one word of small letters, digits and dashes", at, raw)
    return raw


def _exit(raw: object, at: str) -> int | str:
    if raw == ANY:
        return ANY
    if isinstance(raw, bool) or not re.fullmatch(r"[0-9]{1,3}", str(raw), re.ASCII) or not 1 <= int(str(raw)) <= 255:
        raise RefusedError("it must be an exit code from 1 to 255, or any", at, raw)
    return int(str(raw))


def _signal(raw: object, at: str) -> str:
    if raw not in (ANY, *SIGNALS.values()):
        raise RefusedError("it must be the name of a signal such as SIGKILL, or any", at, raw)
    return str(raw)


def _exception(raw: object, at: str) -> str:
    if not isinstance(raw, str) or not re.fullmatch(r"\w+(\.\w+)*", raw):
        raise RefusedError("it must be the type of an exception such as ValueError, or any", at, raw)
    return raw


def _choice(choices: Sequence[str]) -> Any:
    """Return a parser of a choice of words."""

    def read(raw: object, at: str) -> str:
        if raw not in choices:
            raise RefusedError(f"it must be {', '.join(choices[:-1])} or {choices[-1]}", at, raw)
        return str(raw)

    return read


def _yes(raw: object, at: str) -> bool:
    if raw not in (True, "true"):
        raise RefusedError("it must be true, or be left out", at, raw)
    return True


def _pattern(raw: object, at: str) -> str:
    pattern = _text(raw, at)
    if len(pattern) > _LONGEST:
        raise RefusedError(f"a pattern can have {_LONGEST} characters at most", at, raw)
    try:
        empty = re.compile(pattern).search("")
    except (re.error, OverflowError, RecursionError) as error:
        raise RefusedError(f"it is no regular expression: {error}", at, raw) from None
    if empty:
        raise RefusedError("it fits an empty line, and so everything", at, raw)
    if _may_explode(pattern):
        raise RefusedError("a group that is repeated can hold neither a repetition nor a `|`", at, raw)
    return pattern


def _may_explode(pattern: str) -> bool:
    """Return whether a pattern repeats a group with choices, as in (a+)+ or (a|aa)*, which may take for ever to fail.

    Groups are replaced from the inside out by a character without choices (x), or with choices (x+).
    """
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", re.sub(r"\\.", "x", pattern))
    while group := re.search(r"\((?:\?(?:[:=!>]|<[=!]|P<\w+>))?([^()]*)\)([*+{]?)", plain):
        choices = re.search(r"[*+{|]", group[1])
        if choices and group[2]:
            return True
        plain = plain[: group.start()] + ("x+" if choices else "x") + plain[group.start(2) :]
    return False


_PARSERS: Mapping[str, Any] = {
    "exit": _exit,
    "signal": _signal,
    "exception": _exception,
    "error": _pattern,
    "log": _pattern,
    "kernel": _pattern,
    "how": _choice(HOWS),
    "before_first_step": _yes,
    "class": _word,
    "action": _choice(ACTIONS),
    "meaning": _text,
}
