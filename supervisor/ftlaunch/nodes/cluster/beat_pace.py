"""Decides how often nodes send beats, their signs of life with what ranks have written to the pages. Pure.

Each beat and its answer cost the head time. Therefore the beats of all nodes together are limited: in a large job each
node sends fewer of them, but at least two within the node timeout.
"""

from __future__ import annotations

SHORTEST_SECONDS = 0.1
"""seconds between two beats in a job of few nodes"""
_MOST_A_SECOND = 200  # beats of all nodes together
_LONGEST_SECONDS = 5.0
_BEATS_A_TIMEOUT = 2  # the least number of beats within the node timeout
_MANY_NODES = 128  # the number of nodes from which the head gathers messages
_GATHER_SECONDS = 0.01  # in which _MANY_NODES send two beats or more
_GATHER_SECONDS_A_NODE = 1.5e-5  # in a larger job: a turn of the loop costs the head as much as two beats
_HURRY_FACTOR = 10  # by which beats are more frequent while the head waits for the step that all ranks hold


def beat_seconds(nodes: int, timeout_seconds: float) -> float:
    """Return the seconds between two beats of each node.

    Args:
        nodes: the largest number of nodes of the job.
        timeout_seconds: seconds of silence after which a node counts as lost.
    """
    longest = max(min(timeout_seconds / _BEATS_A_TIMEOUT, _LONGEST_SECONDS), SHORTEST_SECONDS)
    return min(max(nodes / _MOST_A_SECOND, SHORTEST_SECONDS), longest)


def hurried_seconds(seconds: float) -> float:
    """Return the seconds between two beats of a node whose ranks are about to stop.

    Args:
        seconds: the seconds between two beats at other times.
    """
    return seconds / _HURRY_FACTOR


def delay_seconds(seconds: float) -> float:
    """Return how many seconds later than in a small job the head may learn what a rank has written.

    Args:
        seconds: the seconds between two beats.
    """
    return seconds - SHORTEST_SECONDS


def gather_seconds(nodes: int) -> float:
    """Return the seconds for which the head gathers messages, to handle them in one turn of its loop.

    A report of a rank's end is delayed by at most this time.

    Args:
        nodes: the largest number of nodes of the job.
    """
    return max(_GATHER_SECONDS, nodes * _GATHER_SECONDS_A_NODE) if nodes >= _MANY_NODES else 0.0
