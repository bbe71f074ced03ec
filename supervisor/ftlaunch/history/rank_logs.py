"""What the ranks of a run have printed: which files there are, and their lines as they come."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

_ATTEMPT, _RANK = re.compile(r"attempt_(\d+)"), re.compile(r"rank_(\d+)\.log")
_PIECE = 1 << 20  # bytes


def attempts(log_dir: Path) -> list[int]:
    """The attempts that have logs, in order; none where the folder cannot be read."""
    return sorted(_numbers(log_dir, _ATTEMPT))


def logs_of(log_dir: Path, attempt: int) -> dict[int, Path]:
    """The logs of an attempt, by rank."""
    folder = log_dir / f"attempt_{attempt}"
    return {rank: folder / f"rank_{rank}.log" for rank in sorted(_numbers(folder, _RANK))}


def _numbers(folder: Path, name: re.Pattern[str]) -> Iterator[int]:
    try:
        found = [name.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return
    yield from (int(match[1]) for match in found if match is not None)


class LogReader:
    """The lines of one log, from where they were read before."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        """begin: how many bytes are not read."""
        self._path, self._offset, self._rest = path, begin, b""

    def read(self, *, last: bool = False) -> Iterator[str]:
        """Those that are whole by now; with `last` also what is behind the last line's end. Raises OSError."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while piece := file.read(_PIECE):
                self._offset += len(piece)
                *lines, self._rest = (self._rest + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        if last and self._rest:
            rest, self._rest = self._rest, b""
            yield rest.decode(errors="replace")


class Follower:
    """The lines of all ranks, or some, from the attempt given on, as they are printed."""

    def __init__(self, log_dir: Path, ranks: Collection[int], attempt: int) -> None:
        """ranks: none of them means all."""
        self._dir, self._ranks, self._attempt = log_dir, ranks, attempt
        self._lines: dict[tuple[int, int], LogReader] = {}  # by attempt and rank

    def read(self, *, last: bool = False) -> Iterator[tuple[int, str]]:
        """Rank and line of what was printed since. last: nothing more will come. Raises OSError."""
        there = [attempt for attempt in attempts(self._dir) if attempt >= self._attempt]
        for attempt in there:
            over = last or attempt != there[-1]
            for rank, path in logs_of(self._dir, attempt).items():
                if not self._ranks or rank in self._ranks:
                    lines = self._lines.setdefault((attempt, rank), LogReader(path))
                    yield from ((rank, line) for line in lines.read(last=over))
