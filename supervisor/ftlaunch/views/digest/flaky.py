"""Finds nodes that fail more often than chance explains. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

LEAST_FAILURES = 3
"""a node with fewer failures is never named: two failures on one of a hundred nodes are a common coincidence"""
_NEGLIGIBLE = 1e-12
_SIGNIFICANCE = 0.01  # chance of naming any node although all nodes are alike


@dataclass(frozen=True)
class Exposure:
    """The time in seconds for which a node ran ranks, and the number of failures that began on the node."""

    host: str
    seconds: float
    failures: int


@dataclass(frozen=True)
class FlakyNode:
    """A node with significantly more failures than its share."""

    host: str
    failures: int
    of: int
    """failures of all compared nodes, this node included"""
    share: float
    """this node's share, between 0 and 1, of the time for which the compared nodes ran ranks"""
    chance: float
    """probability that any of as many equal nodes has at least as many failures"""


def flaky_nodes(exposures: Sequence[Exposure]) -> list[FlakyNode]:
    """Return the nodes with significantly more failures than their share, the worst first.

    If all nodes are alike, a failure falls on a node with a probability that equals the node's share of the time for
    which nodes ran ranks: a node that trains twice as long fails twice as often. The number of a node's failures is
    therefore binomial, and the test asks how likely at least that many are. Because the worst of many nodes always
    looks bad, the probability is multiplied by the number of nodes (Bonferroni). A node is named if the result is below
    1 % and the node has at least three failures. The test then repeats without that node, because a very bad node
    makes the share of a bad node look small.

    The exposures must not count failures of the script itself: rank 0 often fails for all, and its node would be named.
    A fault of the script that always hits one rank, and looks like a machine's, cannot be told from a flaky node here.
    """
    left = [exposure for exposure in exposures if exposure.seconds > 0]
    found: list[FlakyNode] = []
    while len(left) > 1:
        judged = [_judged(exposure, left) for exposure in left if exposure.failures >= LEAST_FAILURES]
        worst = min(judged, key=lambda node: (node.chance, node.host), default=None)
        if worst is None or worst.chance >= _SIGNIFICANCE:
            break
        found.append(worst)
        left = [exposure for exposure in left if exposure.host != worst.host]
    return found


def _judged(node: Exposure, nodes: Sequence[Exposure]) -> FlakyNode:
    failures = sum(other.failures for other in nodes)
    share = node.seconds / sum(other.seconds for other in nodes)
    chance = min(_at_least(node.failures, failures, share) * len(nodes), 1.0)
    return FlakyNode(host=node.host, failures=node.failures, of=failures, share=share, chance=chance)


def _at_least(count: int, trials: int, share: float) -> float:
    """Return the probability of at least `count` successes in `trials` trials with probability `share` < 1 each."""
    if count <= trials * share:
        return 1.0  # not more than expected
    ways = lgamma(trials + 1) - lgamma(count + 1) - lgamma(trials - count + 1)
    term = whole = exp(ways + count * log(share) + (trials - count) * log(1 - share))
    for k in range(count, trials):  # above the expected number each term is smaller than the previous term
        term *= (trials - k) / (k + 1) * share / (1 - share)
        whole += term
        if term <= whole * _NEGLIGIBLE:
            break
    return min(whole, 1.0)
