"""Which nodes fail more often than chance explains. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

LEAST_FAILURES = 3
"""fewer say nothing: two failures on one of a hundred nodes are a coincidence that some pair makes every month"""
_NEGLIGIBLE = 1e-12
_CHANCE = 0.01  # of naming any node at all where all of them are alike


@dataclass(frozen=True)
class Exposure:
    """A node, for how long it has run ranks, and the failures that began on it."""

    host: str
    seconds: float
    failures: int


@dataclass(frozen=True)
class FlakyNode:
    """A node that stands out."""

    host: str
    failures: int
    of: int
    """failures of all nodes that it was compared with, its own among them"""
    share: float
    """of the time that those nodes have run ranks"""
    chance: float
    """that some of as many nodes, all alike, has so many"""


def flaky_nodes(exposures: Sequence[Exposure]) -> list[FlakyNode]:
    """The nodes with significantly more failures than their share, the worst first.

    Where all nodes are alike, each failure falls on a node with a probability that is the node's share of the time in
    which nodes ran ranks: a node that trains twice as long fails twice as often. So the failures of a node are
    binomial, and what is asked is how likely as many as it has, or more, are. There are many nodes, and the worst of
    many looks bad always: the chance is multiplied by their number (Bonferroni). A node is named where what is left is
    below 1 %, and it has three failures at least. Then it is taken out and the others are compared anew, since a very
    bad node makes the share of a bad one look small.

    Failures that are the script's own must not be among them: rank 0 often fails for all, and its node would be named.
    A fault of the script that always hits one rank, and looks like a machine's, cannot be told from a flaky node here.
    """
    left = [one for one in exposures if one.seconds > 0]
    found: list[FlakyNode] = []
    while len(left) > 1:
        judged = [_judged(one, left) for one in left if one.failures >= LEAST_FAILURES]
        worst = min(judged, key=lambda node: (node.chance, node.host), default=None)
        if worst is None or worst.chance >= _CHANCE:
            break
        found.append(worst)
        left = [one for one in left if one.host != worst.host]
    return found


def _judged(one: Exposure, nodes: Sequence[Exposure]) -> FlakyNode:
    failures, share = sum(node.failures for node in nodes), one.seconds / sum(node.seconds for node in nodes)
    chance = min(_at_least(one.failures, failures, share) * len(nodes), 1.0)
    return FlakyNode(one.host, one.failures, failures, share, chance)


def _at_least(count: int, trials: int, share: float) -> float:
    """The probability of `count` or more of so many trials, each with the probability `share`, below 1."""
    if count <= trials * share:
        return 1.0  # not more than expected
    ways = lgamma(trials + 1) - lgamma(count + 1) - lgamma(trials - count + 1)
    term = whole = exp(ways + count * log(share) + (trials - count) * log(1 - share))
    for k in range(count, trials):  # beyond what is expected each term is less than the one before
        term *= (trials - k) / (k + 1) * share / (1 - share)
        whole += term
        if term <= whole * _NEGLIGIBLE:
            break
    return min(whole, 1.0)
