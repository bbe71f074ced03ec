"""The figures as Markdown: medians, and in brackets the least and the most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

Rounds = Mapping[str, Sequence[Mapping[str, float]]]  # launcher -> a dictionary of figures a round

_MILLISECONDS = [
    "launch to first line", "launch to ready", "death to ready", "death to first new step", "hang (limit 3 s) to ready",
    "last line to exit", "last rank's end to exit", "SIGTERM to exit",
]  # fmt: skip
_MIB = ["launcher, resident", "job with launcher, memory"]


def race(rounds: Rounds) -> str:
    """A row a figure, a column a launcher."""
    names = list(rounds)
    rows = [["", *names]]
    for figure in _MILLISECONDS:
        rows.append([figure, *(_spread(_values(rounds[name], figure), "ms", 1000) for name in names)])
    for figure in ("steps lost at the death", "steps lost at SIGTERM"):
        rows.append([figure, *(_spread(_values(rounds[name], figure), "", 1) for name in names)])
    rows.append(["restarts that succeeded", *(_successes(rounds[name]) for name in names)])
    rows.append(["small jobs that got to their ends", *(_count(rounds[name], "last line to exit") for name in names)])
    rows.append(["example jobs that went on", *(_went_on(rounds[name]) for name in names)])
    for figure in _MIB:
        rows.append([figure, *(_spread(_values(rounds[name], figure), "MiB", 1) for name in names)])
    rows.append(
        [
            "launcher, while training",
            *(_spread(_values(rounds[n], "launcher, share of a core"), "%", 100) for n in names),
        ]
    )
    return _table(rows)


def ratios(rounds: Rounds, ours: str, others: Sequence[str]) -> str:
    """How many times faster ours is than the best of the others, by medians of the same run."""
    rows = [["", "best of the others", f"times faster: {ours}"]]
    for figure in _MILLISECONDS:
        found = {name: median(values) for name in others if (values := _values(rounds[name], figure))}
        mine = _values(rounds[ours], figure)
        if found and mine:
            best = min(found, key=lambda name: found[name])
            rows.append([figure, f"{best}, {_digits(1000 * found[best])} ms", f"{found[best] / median(mine):.3g}"])
    return _table(rows)


def growth(found: Mapping[int, Mapping[str, Sequence[float]]]) -> str:
    """A row a figure, a column a number of ranks."""
    rows = [["", *(f"{ranks} rank{'s' if ranks > 1 else ''}" for ranks in found)]]
    for figure in next(iter(found.values())):
        unit, factor = {"CPU": ("%", 100), "resident": ("MiB", 1)}.get(figure, ("ms", 1000))
        rows.append([figure, *(_spread(measured[figure], unit, factor) for measured in found.values())])
    return _table(rows)


def _values(rounds: Sequence[Mapping[str, float]], figure: str) -> list[float]:
    """Of all rounds; `death to ready` has several in a round."""
    return [value for one in rounds for name, value in one.items() if name.rstrip(" 0123456789") == figure]


def _successes(rounds: Sequence[Mapping[str, float]]) -> str:
    deaths = sum(one.get("deaths", 0) for one in rounds)
    return f"{sum(one.get('restarts that succeeded', 0) for one in rounds):.0f} of {deaths:.0f}" if deaths else ""


def _went_on(rounds: Sequence[Mapping[str, float]]) -> str:
    tried = sum("example jobs" in one for one in rounds)
    return f"{sum('death to first new step' in one for one in rounds)} of {tried}" if tried else ""


def _count(rounds: Sequence[Mapping[str, float]], figure: str) -> str:
    return f"{sum(figure in one for one in rounds)} of {len(rounds)}"


def _table(rows: list[list[str]]) -> str:
    first, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([first, "|" + " --- |" * len(rows[0]), *rest])


def _spread(values: Sequence[float], unit: str, factor: float) -> str:
    if not values:
        return ""
    least, middle, most = (_digits(factor * value) for value in (min(values), median(values), max(values)))
    return f"{middle} {unit}".strip() if least == most else f"{middle} {unit} ({least} to {most})".replace("  ", " ")


def _digits(value: float) -> str:
    """Three of them, and no exponents."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
