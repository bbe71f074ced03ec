"""The base class of events: a name and fields for the journal, a sentence for people. Pure data.

To add an event, write a dataclass in one of the modules beside this one, and run `python scripts/docs/generate.py`,
which lists each event with its class docstring. The reporter hands events to the sinks (`reporting/sinks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ftlaunch.system.systemd import Priority


@dataclass(frozen=True)
class JobEvent:
    """Something that has happened to a job."""

    name: ClassVar[str] = ""
    """the name of the event in the journal; "": the event is for the terminal only"""
    priority: ClassVar[Priority] = Priority.INFO
    """the priority of the event's sentence in systemd's journal"""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the event in the journal, JSON-ready."""
        return {}

    def sentence(self) -> str:
        """Return one line for the terminal; "": nothing is shown."""
        return ""

    def lines(self) -> Sequence[str]:
        """Return further lines for the terminal, shown before the sentence and without the prefix `ftlaunch: `."""
        return ()


@dataclass(frozen=True)
class Note(JobEvent):
    """A sentence for the terminal."""

    text: str

    def sentence(self) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True)
class Complaint(Note):
    """A sentence on what cannot be done; the job goes on without it."""

    priority = Priority.WARNING
