"""Fault rules: what a rule compares with the end of a rank, which class a match gives, and what is done then. Pure.

The built-in rules are data, `configs/fault_rules.yaml`; a job adds its own in its spec, in the same form. The spec's
parser makes the rules, and `failure_diagnosis` matches them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ACTIONS = ("restart", "wait", "give-up")
HOWS = ("hang", "left-early", "spawn")
"""failures without an exit status of their own that a rule can name"""
ANY = "any"
"""value of a condition that every exit code, signal or exception meets"""
_PATTERNS = ("error", "log", "kernel")  # conditions that are regular expressions, searched line by line
CONDITIONS = ("exit", "signal", "exception", *_PATTERNS, "how")
"""names of the conditions of which a rule needs at least one"""
_SEARCHED_CHARACTERS = 1000  # of each line: bounds the time that a costly pattern can take


@dataclass(frozen=True)
class Facts:
    """What is known of the end of a rank, for comparison with rules. Empty values are unknown or do not apply."""

    exit: int | None = None  # exit code; None if a signal ended the rank
    signal: str = ""  # name of the signal that ended the rank
    exception: str = ""  # type of the exception, as in the traceback
    error: str = ""  # text of the exceptions, without source lines
    log: str = ""  # end of the rank's log
    kernel: str = ""  # lines of the kernel log
    how: str = ""  # one of HOWS
    before_first_step: bool = False  # the job had completed no step


@dataclass(frozen=True)
class FaultRule:
    """One row of the table. A rule fits if every condition that is not empty is met."""

    kind: str
    action: str
    meaning: str = ""
    exit: int | str | None = None
    signal: str = ""
    exception: str = ""
    error: str = ""
    log: str = ""
    kernel: str = ""
    how: str = ""
    before_first_step: bool = False

    def fits(self, facts: Facts) -> bool:
        """Return whether all conditions of this rule are met."""
        return (
            self.how == facts.how
            and (self.exit is None or (facts.exit is not None and self.exit in (ANY, facts.exit)))
            and (not self.signal or (bool(facts.signal) and self.signal in (ANY, facts.signal)))
            and (not self.exception or _is_type(self.exception, facts.exception))
            and (facts.before_first_step or not self.before_first_step)
            and all(_found(getattr(self, name), getattr(facts, name)) for name in _PATTERNS)
        )

    def row(self) -> dict[str, object]:
        """Return this rule in the form of a spec, without empty conditions."""
        fields = {"class" if name == "kind" else name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in fields.items() if value not in ("", None, False)}


UNKNOWN = FaultRule("unknown", "restart")


def first_fitting(rules: Sequence[FaultRule], facts: Facts) -> FaultRule:
    """Return the first rule that fits, or UNKNOWN."""
    return next((rule for rule in rules if rule.fits(facts)), UNKNOWN)


def _is_type(wanted: str, name: str) -> bool:
    return bool(name) and (wanted in (ANY, name) or wanted.rpartition(".")[2] == name.rpartition(".")[2])


def _found(pattern: str, text: str) -> bool:
    if not pattern:
        return True
    search = re.compile(pattern).search  # re keeps what it has compiled
    return any(search(line[:_SEARCHED_CHARACTERS]) for line in text.splitlines())
