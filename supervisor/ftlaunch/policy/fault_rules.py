"""The table of faults: where a rule looks, which class it gives, and what is done about it.

The built-in rules are data, `configs/fault_rules.yaml`; a job adds its own in its spec, in the same form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ACTIONS = ("restart", "wait", "give-up")
HOWS = ("hang", "left-early", "spawn")
ANY = "any"
_PATTERNS = ("error", "log", "kernel")
LOOKS = ("exit", "signal", "exception", *_PATTERNS, "how")
_LINE = 1000  # characters of a line that are searched: it bounds what a pattern of many parts may cost


@dataclass(frozen=True)
class Facts:
    """What rules look at: a rank's end."""

    exit: int | None = None
    signal: str = ""
    exception: str = ""  # its type, as in the traceback
    error: str = ""  # the text of the exceptions
    log: str = ""
    kernel: str = ""
    how: str = ""
    before_first_step: bool = False


@dataclass(frozen=True)
class FaultRule:
    """One row. Conditions that are empty always fit; of the others all must."""

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
        """Whether this rule speaks of that end."""
        return (
            self.how == facts.how
            and (self.exit is None or (facts.exit is not None and self.exit in (ANY, facts.exit)))
            and (not self.signal or (bool(facts.signal) and self.signal in (ANY, facts.signal)))
            and (not self.exception or _is_type(self.exception, facts.exception))
            and (facts.before_first_step or not self.before_first_step)
            and all(_found(getattr(self, name), getattr(facts, name)) for name in _PATTERNS)
        )

    def row(self) -> dict[str, object]:
        """This rule as a spec would have it."""
        found = {"class" if name == "kind" else name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in found.items() if value not in ("", None, False)}


UNKNOWN = FaultRule("unknown", "restart")


def first_fitting(rules: Sequence[FaultRule], facts: Facts) -> FaultRule:
    """The first rule that fits, or UNKNOWN."""
    return next((rule for rule in rules if rule.fits(facts)), UNKNOWN)


def _is_type(wanted: str, name: str) -> bool:
    return bool(name) and (wanted in (ANY, name) or wanted.rpartition(".")[2] == name.rpartition(".")[2])


def _found(pattern: str, text: str) -> bool:
    if not pattern:
        return True
    search = re.compile(pattern).search  # re keeps what it has compiled
    return any(search(line[:_LINE]) for line in text.splitlines())
