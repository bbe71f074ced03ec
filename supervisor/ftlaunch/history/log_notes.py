"""Reads the notes beside the logs: how long logs were at what time, and where in them ranks began.

ranks/log_marks.py writes the notes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ftlaunch_contract.files.regular_file import open_regular

_MARKS = "marks.*.jsonl"
Of = Literal["attempt", "rank"]
"""what has begun: all ranks of an attempt on a node, or a single rank that was started again"""


class LengthNote(NamedTuple):
    """The lengths of logs at one time."""

    at: float
    """time in seconds of the epoch"""
    lengths: Mapping[int, int]
    """bytes by rank"""
    begins: Of | None = None
    """what was started at that time, so that it begins at these offsets; None if nothing was"""

    def line(self) -> bytes:
        """Return the note as a line of the file."""
        note: dict[str, Any] = {"t": round(self.at, 3), "sizes": self.lengths}
        if self.begins:
            note["begins"] = self.begins
        return json.dumps(note, separators=(",", ":")).encode() + b"\n"


def marks_name(first_rank: int) -> str:
    """Return the name of a node's notes. Each node has its own file, named after the first of its ranks."""
    return _MARKS.replace("*", str(first_rank))


def lengths_at(folder: Path, when: float) -> dict[int, int] | None:
    """Return how long the logs of an attempt were at a time, or some seconds before, as notes are written at intervals.

    Args:
        folder: folder of the attempt.
        when: seconds of the epoch.

    Returns:
        Bytes by rank, without ranks that have no note of that time; None if there are no notes at all.

    Raises:
        OSError: the notes cannot be read.
    """
    known: dict[int, int] = {}
    for note in _notes(folder):
        if note.at <= when:
            known |= note.lengths
    return known if any(folder.glob(_MARKS)) else None


def beginnings(folder: Path) -> list[LengthNote]:
    """Return the notes that say where ranks began, of all runs of the job, the oldest first.

    Args:
        folder: folder of an attempt.

    Raises:
        OSError: the notes cannot be read.
    """
    return sorted(_notes(folder, b'"begins"'), key=lambda note: note.at)


def _notes(folder: Path, word: bytes = b"") -> Iterator[LengthNote]:
    """Yield the notes whose lines contain `word`. Lines that a crash has torn are skipped. Raises OSError."""
    for path in sorted(folder.glob(_MARKS)):
        with open_regular(path) as file:
            for line in file:
                if word in line:
                    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                        note = json.loads(line)
                        lengths = {int(rank): int(length) for rank, length in note["sizes"].items()}
                        yield LengthNote(float(note["t"]), lengths, note.get("begins"))
