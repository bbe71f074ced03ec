"""What a way to deliver notices is: the one interface behind `notify:` of a job spec.

To add another: a module beside this one with a class of this kind, its line in `table.py`, a test, and a row in
docs/guide/notify.md. docs/extending/notify-target.md goes through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

KINDS = ("incident", "recovered", "give_up", "done", "stopped", "slow", "hang_suspected", "differs")
"""kinds of notices"""
# A slow rank alone is no reason to wake a person, and a job is mostly stopped by whoever would be told.
FOR_PEOPLE = tuple(kind for kind in KINDS if kind not in ("slow", "stopped"))
"""kinds that people are told of where a spec does not say"""
# Programs that read notices expect a known list.
FOR_PROGRAMS = tuple(kind for kind in FOR_PEOPLE if kind not in ("recovered", "differs"))
"""kinds that programs are told of where a spec does not say"""


@dataclass(frozen=True)
class Delivery:
    """How one notice is delivered: a process that the notifier starts, and kills at the time limit."""

    argv: Sequence[str]
    """every user of the machine can read it: a secret belongs into `stdin`"""
    stdin: str
    says_why: bool = False
    """the program is ours, and says on its stdout why it failed: {"error": clause, "final": trying again is of no use}.
    Of a user's program only the exit status counts, as what it prints may be secret."""


class Target(Protocol):
    """Whom to tell, in one of the ways. Its fields are what the spec says; instances are frozen dataclasses."""

    key: ClassVar[str]
    """the key of `notify:` that asks for this way"""
    allowed: ClassVar[str]
    """what the key's value must be, as a clause that follows `it must be`"""
    kinds: ClassVar[Sequence[str]] = FOR_PROGRAMS
    """of the notices that are delivered where `on` is left out"""

    @classmethod
    def parse(cls, raw: object) -> Target:
        """Return what a value of the key means. Raises RefusedError for what is not allowed."""

    @property
    def name(self) -> str:
        """The target's name in the journal and on the terminal, without a secret."""

    def shown(self) -> object:
        """Return the value that a spec would have for this target, without its secrets."""

    def delivery(self, notice: str, timeout_seconds: float) -> Delivery:
        """Return how a notice is delivered. notice: a JSON object; docs/guide/notify.md has its fields."""

    @classmethod
    def refusals(cls, targets: Sequence[Target]) -> Sequence[str | None]:
        """Ask whether notices could be delivered to these targets, before the job begins.

        Returns:
            For each target what is wrong, to stand directly behind "cannot use `notify.<key>`"; None: nothing.
        """
        return [None] * len(targets)
