"""Finds the ranks whose measurements stand out from those of the others. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

# A rank is an outlier if its value is more than OUTLIER_FACTOR times the median of the others, and lies more than
# OUTLIER_SIGMAS of their median absolute deviations above that median. The deviation is scaled by _SIGMA, which makes
# it the sigma of a normal distribution.
OUTLIER_FACTOR = 1.5
OUTLIER_SIGMAS = 3.0
_SIGMA = 1.4826


def outliers(seconds: Mapping[int, float]) -> list[int]:
    """Return the ranks that are much slower than the other ranks.

    Args:
        seconds: the time that each rank took, by rank.
    """
    slow = []
    ordered = sorted(seconds.values())
    for rank, own in seconds.items():
        middle = median_of_others(own, ordered)
        if own <= OUTLIER_FACTOR * middle:
            continue
        spread = _SIGMA * _median(sorted(abs(value - middle) for other, value in seconds.items() if other != rank))
        if own - middle > OUTLIER_SIGMAS * spread:
            slow.append(rank)
    return slow


def _median(ordered: Sequence[float]) -> float:
    """Return the median of values in ascending order.

    Python's `statistics` is not used, because importing that module would cost every supervisor 0.4 MiB.
    """
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def median_of_others(own: float, ordered: Sequence[float]) -> float:
    """Return the median of all values but `own`, by bisection; of a single value, the value itself.

    Args:
        own: one of the values.
        ordered: all values, `own` included, in ascending order.
    """
    if len(ordered) == 1:
        return own
    own_index = bisect_left(ordered, own)
    # indices of the two middle values among the others; those from `own` on lie one place further in `ordered`
    lower = (len(ordered) - 2) // 2
    upper = (len(ordered) - 1) // 2
    return (ordered[lower + (lower >= own_index)] + ordered[upper + (upper >= own_index)]) / 2


def extremes(values: Sequence[tuple[int, float]], most: int) -> list[list[float]]:
    """Return all pairs of rank and value, or those of the lowest, median and highest value if there are many.

    Args:
        values: pairs of rank and value.
        most: the largest number of pairs that is returned whole.

    Returns:
        Pairs of rank and value, the value rounded to six significant digits.
    """
    chosen = list(values)
    if len(chosen) > most:
        ordered = sorted(chosen, key=lambda pair: pair[1])
        chosen = [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]
    return [[rank, float(f"{value:.6g}")] for rank, value in chosen]
