"""Notices for a program of the user's: the notice is its stdin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ftlaunch.common.masking import MASK, masked_args, masked_text
from ftlaunch.spec import parsers as p
from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.notify_targets.target import Delivery, Target


@dataclass(frozen=True)
class ProgramTarget(Target):
    """A program with its arguments, or a line for /bin/sh; one of them."""

    key: ClassVar[str] = "command"
    allowed: ClassVar[str] = "a list of words, run as they are, or one text, run by /bin/sh"

    argv: tuple[str, ...] = ()
    shell: str = ""

    @classmethod
    def parse(cls, raw: object) -> ProgramTarget:
        """Read a list of words, or a text."""
        if not isinstance(raw, list):
            return cls(shell=p.text(raw))
        argv = p.text_list(raw)
        if not argv or not argv[0].strip():
            raise RefusedError
        return cls(argv=argv)

    @property
    def name(self) -> str:
        """The program; masked where a variable stands in its place, whose value may be secret."""
        word = self.argv[0] if self.argv else self.shell.split()[0]
        return MASK if "=" in word else word

    def shown(self) -> object:
        """Return the words, or the text, with masked values."""
        return [masked_text(arg) for arg in masked_args(self.argv)] if self.argv else masked_text(self.shell)

    def delivery(self, notice: str, timeout_seconds: float) -> Delivery:
        """Have the program run with the notice as its stdin."""
        return Delivery(argv=self.argv or ("/bin/sh", "-c", self.shell), stdin=notice)
