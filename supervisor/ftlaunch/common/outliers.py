"""Which of some measurements stand out from the others. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

# A rank is an outlier when it takes more than OUTLIER_FACTOR times the median of the others, and is more than
# OUTLIER_SIGMAS of their median absolute deviations away from it (scaled to a normal distribution's sigma).
OUTLIER_FACTOR, OUTLIER_SIGMAS = 1.5, 3.0
_SIGMA = 1.4826


def outliers(seconds: Mapping[int, float]) -> list[int]:
    """The ranks that are slower than the others, each measured against the others alone."""
    slow, ordered = [], sorted(seconds.values())
    for rank, own in seconds.items():
        middle = median_of_others(own, ordered)
        if own <= OUTLIER_FACTOR * middle:
            continue
        spread = _SIGMA * _median(sorted(abs(value - middle) for other, value in seconds.items() if other != rank))
        if own - middle > OUTLIER_SIGMAS * spread:
            slow.append(rank)
    return slow


def _median(ordered: Sequence[float]) -> float:
    """Python's `statistics` brings 0.4 MiB, which every supervisor would hold."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def median_of_others(own: float, ordered: Sequence[float]) -> float:
    """The median of the ordered values without `own`, found without a walk through them; of a single value, itself."""
    if len(ordered) == 1:
        return own
    number, half = bisect_left(ordered, own), (len(ordered) - 1) // 2
    least, most = (ordered[at + (at >= number)] for at in ((len(ordered) - 2) // 2, half))
    return (least + most) / 2


def extremes(values: Sequence[tuple[int, float]], most: int) -> list[list[float]]:
    """Ranks and their values, rounded: all of them up to `most`, of more those of the lowest, median and highest."""
    chosen = list(values)
    if len(chosen) > most:
        ordered = sorted(chosen, key=lambda pair: pair[1])
        chosen = [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]
    return [[rank, float(f"{value:.6g}")] for rank, value in chosen]
