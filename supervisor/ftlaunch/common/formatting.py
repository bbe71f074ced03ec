"""How numbers and tables are written for people. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_LEAST_CELL = 8  # characters: what is cut shorter says nothing


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
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
    """`812 B`, `3.4 MiB`, `1.2 GiB`, `2.0 TiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(count, 1) < 1024:  # what is shown: never `1024.0 KiB`
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def lost_steps(lost: int, resumed: int) -> str:
    """Say how many steps were lost, and which: `3 steps lost (34 to 36, which all ranks had completed)`.

    A rank may have been a step ahead of the others when it failed, and its failure is told with its own step.

    lost: steps that all ranks had completed behind the step `resumed`.
    """
    if lost <= 0:
        return "0 steps lost"
    if lost == 1:
        return f"1 step lost ({resumed + 1}, which all ranks had completed)"
    return f"{lost} steps lost ({resumed + 1} to {resumed + lost}, which all ranks had completed)"


def printable(line: str) -> str:
    """A line that commands no terminal, whatever a job has put into it: control characters are written out."""
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in line)


def table(rows: Sequence[tuple[str, ...]], left: Collection[int] = ()) -> list[str]:
    """Lines of a table, its columns flush right but for those in `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: tuple[str, ...]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(c.ljust(w) if n in left else c.rjust(w) for n, (c, w) in enumerate(cells)).rstrip()

    return [line(row) for row in rows]


def stretches(numbers: Sequence[int]) -> str:
    """`0, 3, 5 to 2047`: ascending numbers, of which three or more in a row are a stretch."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found]
    return ", ".join(words)


def cut_in_the_middle(text: str, width: int) -> str:
    """At most so many characters, three at least: of a longer text its beginning and its end."""
    if len(text) <= width:
        return text
    ahead = (width - 2) // 2
    return f"{text[:ahead]}...{text[len(text) - (width - 3 - ahead) :]}" if width > 3 else "..."


def fitted(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """The rows of a table of so many columns of a terminal: the longest cells are cut in their middle."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gaps = 2 * (len(widths) - 1)
    while sum(widths) + gaps > width and max(widths) > _LEAST_CELL:
        widths[widths.index(max(widths))] -= 1
    return [tuple(map(cut_in_the_middle, row, widths)) for row in rows]
