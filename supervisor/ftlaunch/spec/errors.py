"""The errors that refuse a spec, in one sentence that names what was given, where, and what is allowed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ftlaunch.common.suggestions import did_you_mean

__all__ = ["Given", "Origin", "RefusedError", "SpecError", "did_you_mean", "one_line", "shown"]


class SpecError(ValueError):
    """A job cannot be started as requested; the message is one sentence that begins with `cannot`."""


class RefusedError(ValueError):
    """A parser does not allow a value. `Key.read` and `Origin.error` make a whole sentence of this."""

    def __init__(self, allowed: str | None = None, at: str = "", given: object = None, hint: str = "") -> None:
        """Describe what is wrong.

        Args:
            allowed: says what is allowed; None if the key's own text fits.
            at: path of the wrong part below the key, such as `[2]` or `.NAME`.
            given: value of the wrong part; None stands for the whole value if `at` is empty.
            hint: what the writer may have meant, which follows `allowed`.
        """
        super().__init__(allowed)
        self.allowed = allowed
        self.at = at
        self.given = given
        self.hint = hint


@dataclass(frozen=True)
class Origin:
    """Where a value came from."""

    kind: Literal["flag", "file", "environment", "default"]
    name: str = ""
    """path of the job spec, or name of the variable"""

    def error(self, path: str, given: object, reason: str) -> SpecError:
        """Return the error that says what was given, and why that is not allowed.

        Args:
            path: the key, with the path of a wrong part below it.
            given: what was given there.
            reason: what is wrong or allowed, as the end of the sentence.
        """
        return SpecError(f"{self._subject(path, given)} {reason}")

    def _subject(self, path: str, given: object) -> str:
        """Return the beginning of the sentence, which says what was given, and where."""
        if self.kind == "flag":
            value = "" if given == "true" else f" {shown(given)}"
            return f"cannot use `--{path.replace('_', '-')}{value}`:"
        if self.kind == "file":
            return f"cannot read {self.name}: `{path}` is {shown(given)};"
        if self.kind == "environment":
            return f"cannot use {self.name}={shown(given)}:"
        return f"cannot use the default `{path}: {shown(given)}`:"


class Given(NamedTuple):
    """A setting's value with what a person wrote for it."""

    value: Any
    """value as the parser returned it"""
    raw: object
    """what was written"""
    origin: Origin
    """where it was written"""

    def error(self, name: str, reason: str) -> SpecError:
        """Return the error that says why this value is not allowed for the key `name`."""
        return self.origin.error(name, self.raw, reason)

    @property
    def asked(self) -> bool:
        """Whether somebody gave the value; otherwise it is the default."""
        return self.origin.kind != "default"


def shown(given: object) -> str:
    """Return what was given in a form for a sentence: short, and on one line."""
    if given is None:
        return "empty"
    if isinstance(given, dict):
        return "a mapping"
    if isinstance(given, list):
        return "a list"
    text = one_line(given)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(given: object) -> str:
    """Return what was given in full, quoted and escaped if the text cannot be printed as it is."""
    text = str(given)
    return ascii(text) if text == "" or text != text.strip() or not text.isprintable() else text
