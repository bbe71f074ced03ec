"""Notes of how long logs were, and of where in them ranks began. They lie beside the logs; log_marks.py writes them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from ftlaunch_contract.files.regular_file import open_regular

_MARKS = "marks.*.jsonl"
Of = Literal["attempt", "rank"]
"""what has begun: the ranks of an attempt, or one of them again, alone"""


class LengthNote(NamedTuple):
    """How long logs were at a time."""

    at: float
    """seconds of the epoch"""
    lengths: Mapping[int, int]
    """bytes, by rank"""
    begins: Of | None = None
    """what was started at that moment, and begins there in these logs"""

    def line(self) -> bytes:
        """As the file has it."""
        told = {"t": round(self.at, 3), "sizes": self.lengths} | ({"begins": self.begins} if self.begins else {})
        return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def marks_name(first_rank: int) -> str:
    """The name of the notes: of several nodes each has its own, by the first of its ranks."""
    return _MARKS.replace("*", str(first_rank))


def lengths_at(folder: Path, when: float) -> dict[int, int] | None:
    """How long each log of an attempt was at a time, in seconds of the epoch, or some seconds before: see log_marks.py.

    folder: that of the attempt. A rank without a note of that time is not among them. None where there are no notes at
    all. Raises OSError.
    """
    known: dict[int, int] = {}
    for note in _notes(folder):
        if note.at <= when:
            known |= note.lengths
    return known if any(folder.glob(_MARKS)) else None


def beginnings(folder: Path) -> list[LengthNote]:
    """The notes of an attempt's folder that say where ranks began, of all runs of the job, the oldest first.

    Raises OSError.
    """
    return sorted(_notes(folder, b'"begins"'), key=lambda note: note.at)


def _notes(folder: Path, word: bytes = b"") -> Iterator[LengthNote]:
    """Those with a word in their line."""
    for path in sorted(folder.glob(_MARKS)):
        with open_regular(path) as file:
            for line in file:
                if word in line:
                    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # torn by a crash
                        told = json.loads(line)
                        lengths = {int(rank): int(length) for rank, length in told["sizes"].items()}
                        yield LengthNote(float(told["t"]), lengths, told.get("begins"))
