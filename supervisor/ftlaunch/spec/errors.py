"""How a spec is refused: one sentence that names what was given, where, and what is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ftlaunch.common.suggestions import did_you_mean

__all__ = ["Given", "Origin", "RefusedError", "SpecError", "did_you_mean", "one_line", "shown"]


class SpecError(ValueError):
    """A job that cannot be started as asked; the message is one sentence that begins with `cannot`."""


class RefusedError(ValueError):
    """A parser's answer to a value that is not allowed.

    `allowed` says what is, where the key's own text does not fit; `at` is the path of the culprit below
    the key, such as `[2]` or `.NAME`, and `given` what stands there. `hint` follows what is allowed: what the writer
    may have meant.
    """

    def __init__(self, allowed: str | None = None, at: str = "", given: object = None, hint: str = "") -> None:
        super().__init__(allowed)
        self.allowed = allowed
        self.at = at
        self.given = given
        self.hint = hint


@dataclass(frozen=True)
class Origin:
    """Where a value came from: a flag, the job spec `name`, the variable `name`, or the built-in default."""

    kind: Literal["flag", "file", "environment", "default"]
    name: str = ""

    def error(self, path: str, given: object, reason: str) -> SpecError:
        """The error that says what was given at key `path` and why that cannot be."""
        return SpecError(f"{self._subject(path, given)} {reason}")

    def _subject(self, path: str, given: object) -> str:
        if self.kind == "flag":
            value = "" if given == "true" else f" {shown(given)}"
            return f"cannot use `--{path.replace('_', '-')}{value}`:"
        if self.kind == "file":
            return f"cannot read {self.name}: `{path}` is {shown(given)};"
        if self.kind == "environment":
            return f"cannot use {self.name}={shown(given)}:"
        return f"cannot use the default `{path}: {shown(given)}`:"


class Given(NamedTuple):
    """A parsed value, what a person wrote for it, and where."""

    value: Any
    raw: object
    origin: Origin

    def error(self, name: str, reason: str) -> SpecError:
        """The error that says why this cannot be the value of the key `name`."""
        return self.origin.error(name, self.raw, reason)

    @property
    def asked(self) -> bool:
        """Whether somebody asked for it; otherwise it is the default."""
        return self.origin.kind != "default"


def shown(given: object) -> str:
    """`given` as a reader should see it in a sentence: short, on one line."""
    if given is None:
        return "empty"
    if isinstance(given, dict):
        return "a mapping"
    if isinstance(given, list):
        return "a list"
    text = one_line(given)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(given: object) -> str:
    """`given` in full; quoted and escaped where it cannot be printed as it is."""
    text = str(given)
    return ascii(text) if text == "" or text != text.strip() or not text.isprintable() else text
