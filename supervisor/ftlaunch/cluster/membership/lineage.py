"""What the nodes of an attempt call it: steps in memory of one lineage belong together, those of two never do. Pure."""

from __future__ import annotations


def lineage_of(run: str, attempt: int, nodes: int) -> str:
    """The lineage of an attempt. run: names the life of the job in which the attempts are counted."""
    return f"{run}:{attempt}/{nodes}"


def follows(lineage: str, run: str, attempt: int) -> bool:
    """Whether the attempt may be a later one than attempt `attempt` of `run`: one of another run may be."""
    its_run, _, number = lineage.partition("/")[0].rpartition(":")
    return its_run != run or not number.isdecimal() or int(number) > attempt


def nodes_of(lineage: str) -> int:
    """The nodes of the attempt: its snapshots are those of so many nodes. 0: it is not known."""
    number = lineage.rpartition("/")[2] if "/" in lineage else ""
    return int(number) if number.isascii() and number.isdigit() else 0
