"""One thing that a job can be asked: how it is called, read and explained."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftlaunch.spec import shown
from ftlaunch.spec.errors import RefusedError, did_you_mean

_ANY_WORD = "some-word"  # no choice of any key


@dataclass(frozen=True)
class Key:
    """One thing that can be asked. `default` is what a person would write; None is no value of its own."""

    name: str
    parse: Callable[[object], Any]
    allowed: str
    default: str | None
    help: str
    group: str = "ours"
    """ours | torchrun (same meaning as there) | accepted (no effect on one node) | target (what to run)"""
    option: bool = True
    yaml: bool = True
    switch: bool = False
    """on the command line it stands alone, without a value"""
    short: str | None = None
    env: tuple[str, ...] = ()
    note: str | None = None
    """said on stderr when it is used: an effect that torchrun has and ftlaunch has not"""
    show: Callable[[Any], object] = shown.unchanged
    """how a job spec writes a value"""
    called: str = ""
    """the field of JobSpec that holds the value, where it is not called as the key is"""

    @property
    def field(self) -> str:
        """The field of JobSpec that holds the value, where one does."""
        return self.called or self.name

    @property
    def default_value(self) -> Any:
        """The default as the parser gives it; None where there is none."""
        return None if self.default is None else self.parse(self.default)

    def read(self, raw: object) -> Any:
        """The value of `raw`. Raises RefusedError, always with the text of what is allowed."""
        try:
            return self.parse(raw)
        except RefusedError as refused:
            given = raw if refused.given is None and not refused.at else refused.given
            allowed = refused.allowed or f"it must be {self.allowed}"
            hint = refused.hint or (did_you_mean(given, self.choices()) if isinstance(given, str) else "")
            raise RefusedError(f"{allowed}{hint}", refused.at, given) from None

    def choices(self) -> list[str]:
        """The words in the text of what is allowed that are allowed as they stand: `auto`, `off`, a policy.

        None where any word is allowed.
        """
        if self._takes(_ANY_WORD):
            return []
        return [word for word in re.findall(r"[A-Za-z][\w-]*", self.allowed) if self._takes(word)]

    def _takes(self, word: str) -> bool:
        try:
            self.parse(word)
        except RefusedError:
            return False
        return True
