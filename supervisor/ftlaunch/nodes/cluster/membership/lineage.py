"""Lineages: the names of attempts. Steps of one lineage belong together, and those of two are never mixed. Pure.

A lineage is RUN:ATTEMPT/NODES.
"""

from __future__ import annotations


def lineage_of(run: str, attempt: int, nodes: int) -> str:
    """Return the lineage of an attempt.

    Args:
        run: names the life of the job in which the attempts are counted.
        attempt: the number of the attempt.
        nodes: the number of its nodes.
    """
    return f"{run}:{attempt}/{nodes}"


def run_of(fresh_run: str, life: str) -> str:
    """Return the name of a life of the job.

    Args:
        fresh_run: the name of the `--fresh` start that this life goes on from; empty if there was none.
        life: a random name.
    """
    return f"{fresh_run}-{life}" if fresh_run else life


def life_of(lineage: str) -> str:
    """Return the random name of the life of a lineage; empty if the lineage is unknown."""
    return lineage.partition("/")[0].rpartition(":")[0].rpartition("-")[2]


def is_of_fresh_run(lineage: str, fresh_run: str) -> bool:
    """Return whether steps of a lineage were made since the `--fresh` start named `fresh_run`."""
    return lineage.startswith(f"{fresh_run}-")


def follows(lineage: str, run: str, attempt: int) -> bool:
    """Return whether a lineage may be of a later attempt than `attempt` of `run`; one of another run may be."""
    its_run, _, number = lineage.partition("/")[0].rpartition(":")
    return its_run != run or not number.isdecimal() or int(number) > attempt


def nodes_of(lineage: str) -> int:
    """Return the number of nodes of a lineage's attempt, or 0 if unknown."""
    number = lineage.rpartition("/")[2] if "/" in lineage else ""
    return int(number) if number.isascii() and number.isdigit() else 0
