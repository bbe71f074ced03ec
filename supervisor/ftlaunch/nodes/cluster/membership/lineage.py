"""What the nodes of an attempt call it: steps in memory of one lineage belong together, those of two never do. Pure."""

from __future__ import annotations


def lineage_of(run: str, attempt: int, nodes: int) -> str:
    """The lineage of an attempt. run: names the life of the job in which the attempts are counted."""
    return f"{run}:{attempt}/{nodes}"


def run_of(fresh_run: str, life: str) -> str:
    """Name a life of the job. fresh_run: the name of the fresh start that this life goes on from; empty: of none."""
    return f"{fresh_run}-{life}" if fresh_run else life


def is_of_fresh_run(lineage: str, fresh_run: str) -> bool:
    """Return whether steps of this lineage were made since that fresh start."""
    return lineage.startswith(f"{fresh_run}-")


def follows(lineage: str, run: str, attempt: int) -> bool:
    """Whether the attempt may be a later one than attempt `attempt` of `run`: one of another run may be."""
    its_run, _, number = lineage.partition("/")[0].rpartition(":")
    return its_run != run or not number.isdecimal() or int(number) > attempt


def nodes_of(lineage: str) -> int:
    """The nodes of the attempt: its snapshots are those of so many nodes. 0: it is not known."""
    number = lineage.rpartition("/")[2] if "/" in lineage else ""
    return int(number) if number.isascii() and number.isdigit() else 0
