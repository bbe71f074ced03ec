"""The description of one setting: its names, its parser, its default and its help. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftlaunch.spec import shown
from ftlaunch.spec.errors import RefusedError, did_you_mean

_ANY_WORD = "some-word"  # a word that no key has among its choices


@dataclass(frozen=True)
class Key:
    """One setting of a job, in YAML, on the command line and in the environment."""

    name: str
    """key in YAML; with dashes, the name of the option"""
    parse: Callable[[object], Any]
    """turns what was written into a value; raises RefusedError"""
    allowed: str
    """says what the parser allows, for error messages"""
    default: str | None
    """the default as a person would write it; None if there is no value by default"""
    help: str
    """one line of help"""
    group: str = "ours"
    """ours | torchrun (same meaning as there) | accepted (no effect on one node) | target (what to run)"""
    option: bool = True
    """whether there is an option on the command line"""
    yaml: bool = True
    """whether there is a key in YAML"""
    switch: bool = False
    """whether the option takes no value"""
    short: str | None = None
    """short form of the option"""
    env: tuple[str, ...] = ()
    """environment variables, of which the first that is set counts"""
    note: str | None = None
    """printed on stderr when the setting is used: an effect that torchrun has and ftlaunch has not"""
    show: Callable[[Any], object] = shown.unchanged
    """writes a value as a job spec has it"""
    called: str = ""
    """field of JobSpec that holds the value, if it has another name than the key"""

    @property
    def field(self) -> str:
        """The field of JobSpec that holds the value, if there is one."""
        return self.called or self.name

    @property
    def default_value(self) -> Any:
        """The default as the parser returns it; None if there is none."""
        return None if self.default is None else self.parse(self.default)

    def read(self, raw: object) -> Any:
        """Parse what was written.

        Raises:
            RefusedError: the value is not allowed; the error always says what is.
        """
        try:
            return self.parse(raw)
        except RefusedError as refused:
            given = raw if refused.given is None and not refused.at else refused.given
            allowed = refused.allowed or f"it must be {self.allowed}"
            hint = refused.hint or (did_you_mean(given, self.choices()) if isinstance(given, str) else "")
            raise RefusedError(f"{allowed}{hint}", refused.at, given) from None

    def choices(self) -> list[str]:
        """Return the words in `allowed` that are values themselves, such as `auto`, `off` or a policy.

        If any word is allowed, there are no choices, and the list is empty.
        """
        if self._is_allowed(_ANY_WORD):
            return []
        return [word for word in re.findall(r"[A-Za-z][\w-]*", self.allowed) if self._is_allowed(word)]

    def _is_allowed(self, word: str) -> bool:
        try:
            self.parse(word)
        except RefusedError:
            return False
        return True
