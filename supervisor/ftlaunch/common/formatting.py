"""Formats numbers and tables for people. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_LEAST_CELL = 8  # characters; a cell that is cut shorter says nothing


def duration(seconds: float) -> str:
    """Format a duration: `400 ms`, `1.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: float) -> str:
    """Format a number of bytes: `812 B`, `3.4 MiB`, `1.2 GiB`, `2.0 TiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(count, 1) < 1024:  # the rounded number is compared, so that `1024.0 KiB` is never shown
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: "no steps", "1 step", "2 steps". noun: in the singular."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """Return how often something happened: "once", "twice", "3 times"."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def lost_steps(lost: int, resumed: int) -> str:
    """Say how many steps were lost, and which: `3 steps lost (34 to 36, which all ranks had completed)`.

    The steps are named because a failed rank may have been a step ahead of the others, and its failure is reported
    with that rank's own step.

    Args:
        lost: number of steps after `resumed` that all ranks had completed.
        resumed: the step from which the job resumed.
    """
    if lost <= 0:
        return "0 steps lost"
    if lost == 1:
        return f"1 step lost ({resumed + 1}, which all ranks had completed)"
    return f"{lost} steps lost ({resumed + 1} to {resumed + lost}, which all ranks had completed)"


def printable(line: str) -> str:
    """Escape the control characters of a line, so that text from a job cannot command the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in line)


def table(rows: Sequence[tuple[str, ...]], left: Collection[int] = ()) -> list[str]:
    """Return the lines of a table.

    Args:
        rows: the cells, equally many in each row.
        left: indices of the columns that are aligned left; the others are aligned right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: tuple[str, ...]) -> str:
        padded = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return [line(row) for row in rows]


def stretches(numbers: Sequence[int]) -> str:
    """List ascending numbers, three or more consecutive ones as a range: `0, 3, 5 to 2047`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(words)


def cut_in_the_middle(text: str, width: int) -> str:
    """Return `text`, or its beginning and its end around `...` if the text is longer than `width` characters.

    Args:
        text: one line.
        width: the most characters of the result, at least 3.
    """
    if len(text) <= width:
        return text
    if width <= 3:
        return "..."
    ahead = (width - 2) // 2
    return f"{text[:ahead]}...{text[len(text) - (width - 3 - ahead) :]}"


def fitted(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Cut the longest cells of a table in their middle until the table is at most `width` characters wide."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gaps = 2 * (len(widths) - 1)
    while sum(widths) + gaps > width and max(widths) > _LEAST_CELL:
        widths[widths.index(max(widths))] -= 1
    return [tuple(map(cut_in_the_middle, row, widths)) for row in rows]
