"""How often a node says that it lives, and what its ranks have written: pure.

Each beat, and the answer to it, costs the head time. So the beats of all nodes together are limited: in a large job
each node sends fewer of them, but two at least in the time after which a silent node counts as lost.
"""

from __future__ import annotations

SHORTEST_SECONDS = 0.1
"""between two beats in a job of few nodes"""
_MOST_A_SECOND = 200  # beats of all nodes together
_LONGEST_SECONDS = 5.0
_A_TIMEOUT = 2  # beats in the node timeout, at the least
_MANY_NODES = 128
_GATHER_SECONDS = 0.01  # in which two beats or more come, where there are so many nodes
_GATHER_SECONDS_A_NODE = 1.5e-5  # more of them: a turn of its own costs as much as two beats
_TIMES_AS_OFTEN = 10  # while ranks are about to stop: the head waits for the step that all hold


def beat_seconds(nodes: int, timeout_seconds: float) -> float:
    """Return the seconds between two beats of each node.

    Args:
        nodes: how many the job may have.
        timeout_seconds: of silence, after which a node counts as lost.
    """
    longest = max(min(timeout_seconds / _A_TIMEOUT, _LONGEST_SECONDS), SHORTEST_SECONDS)
    return min(max(nodes / _MOST_A_SECOND, SHORTEST_SECONDS), longest)


def hurried_seconds(seconds: float) -> float:
    """Return the seconds between two beats of a node whose ranks are about to stop. seconds: else."""
    return seconds / _TIMES_AS_OFTEN


def delay_seconds(seconds: float) -> float:
    """Return by how much longer than in a small job news of a rank may be under way. seconds: between two beats."""
    return seconds - SHORTEST_SECONDS


def gather_seconds(nodes: int) -> float:
    """Return the seconds in which the head of a job with many nodes lets messages come, to handle them in one turn.

    A report of a rank's end waits so long at the most. nodes: how many the job may have.
    """
    return max(_GATHER_SECONDS, nodes * _GATHER_SECONDS_A_NODE) if nodes >= _MANY_NODES else 0.0
