"""The form of an event: a name and fields for the journal, a sentence for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ftlaunch.system.systemd import Priority


@dataclass(frozen=True)
class JobEvent:
    """Something that has happened to a job. Sinks (sinks.py) take it."""

    name: ClassVar[str] = ""
    """the journal's `event`; empty: the event is for the terminal only"""
    priority: ClassVar[Priority] = Priority.INFO
    """of what is said for people, where that goes to systemd's journal"""

    def fields(self) -> dict[str, Any]:
        """The journal's fields, JSON-ready."""
        return {}

    def sentence(self) -> str:
        """One line for the terminal; empty: nothing is said."""
        return ""

    def lines(self) -> Sequence[str]:
        """Further lines for the terminal, said before the sentence and without the prefix `ftlaunch: `."""
        return ()


@dataclass(frozen=True)
class Note(JobEvent):
    """A sentence for the terminal."""

    text: str

    def sentence(self) -> str:
        """The text."""
        return self.text


@dataclass(frozen=True)
class Complaint(Note):
    """A sentence on what cannot be done; the job goes on without it."""

    priority = Priority.WARNING
