"""The figures as Markdown: medians, and in brackets the least and the largest value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

Rounds = Mapping[str, Sequence[Mapping[str, float]]]  # launcher -> the figures of each round

_MILLISECONDS = [
    "launch to first line", "launch to ready", "death to ready", "death to first new step", "hang (limit 3 s) to ready",
    "last line to exit", "last rank's end to exit", "SIGTERM to exit",
]  # fmt: skip
_SHARES = [  # the row, the figure of each run that tried, and the figure of each run that succeeded
    ("restarts that succeeded", "deaths", "death to ready"),
    ("small jobs that got to their ends", "small jobs", "last line to exit"),
    ("example jobs that went on", "example jobs", "death to first new step"),
]
_MIB = ["launcher, resident", "job with launcher, memory"]


def race(rounds: Rounds) -> str:
    """Return a table with a row for each figure and a column for each launcher."""
    names = list(rounds)
    rows = [["", *names]]
    for figure in _MILLISECONDS:
        rows.append([figure, *(spread(_values(rounds[name], figure), "ms", 1000) for name in names)])
    for figure in ("steps lost at the death", "steps lost at SIGTERM"):
        rows.append([figure, *(spread(_values(rounds[name], figure), "", 1) for name in names)])
    for row, tried, reached in _SHARES:
        rows.append([row, *(_share(rounds[name], tried, reached) for name in names)])
    for figure in _MIB:
        rows.append([figure, *(spread(_values(rounds[name], figure), "MiB", 1) for name in names)])
    rows.append(
        [
            "launcher, while training",
            *(spread(_values(rounds[n], "launcher, share of a core"), "%", 100) for n in names),
        ]
    )
    return as_table(rows)


def ratios(rounds: Rounds, ours: str, others: Sequence[str]) -> str:
    """Return a table of how many times faster ours is than the best of the others, by medians of the same run."""
    rows = [["", "best of the others", f"times faster: {ours}"]]
    for figure in _MILLISECONDS:
        found = {name: median(values) for name in others if (values := _values(rounds[name], figure))}
        mine = _values(rounds[ours], figure)
        if found and mine:
            best = min(found, key=lambda name: found[name])
            rows.append([figure, f"{best}, {_digits(1000 * found[best])} ms", f"{found[best] / median(mine):.3g}"])
    return as_table(rows)


def growth(found: Mapping[int, Mapping[str, Sequence[float]]]) -> str:
    """Return a table with a row for each figure and a column for each number of ranks."""
    rows = [["", *(f"{ranks} rank{'s' if ranks > 1 else ''}" for ranks in found)]]
    for figure in next(iter(found.values())):
        unit, factor = {"CPU": ("%", 100), "resident": ("MiB", 1)}.get(figure, ("ms", 1000))
        rows.append([figure, *(spread(measured[figure], unit, factor) for measured in found.values())])
    return as_table(rows)


def _values(rounds: Sequence[Mapping[str, float]], figure: str) -> list[float]:
    return [figures[figure] for figures in rounds if figure in figures]


def _share(rounds: Sequence[Mapping[str, float]], tried: str, reached: str) -> str:
    tries = len(_values(rounds, tried))
    return f"{len(_values(rounds, reached))} of {tries}" if tries else ""


def as_table(rows: list[list[str]]) -> str:
    """Return rows as a Markdown table; the first row is the head."""
    first, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([first, "|" + " --- |" * len(rows[0]), *rest])


def spread(values: Sequence[float], unit: str, factor: float) -> str:
    """Return the median, and the least and the largest value if they differ."""
    if not values:
        return ""
    least, middle, most = (_digits(factor * value) for value in (min(values), median(values), max(values)))
    return f"{middle} {unit}".strip() if least == most else f"{middle} {unit} ({least} to {most})".replace("  ", " ")


def _digits(value: float) -> str:
    """Return a number with three digits and without an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
