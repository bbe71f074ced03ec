"""The interface of a scheduler: what its variables say of the job and of the nodes that it has given to the job.

A scheduler is a class in a file of its own in this folder, with an entry in `table.py`. All of it is pure: the
environment is an argument, so that a test can give any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class SchedulerError(ValueError):
    """A scheduler's variables describe a start that cannot work.

    Attributes:
        variable: the variable whose value cannot be used, and the message is the cause; None if the message is a whole
            sentence, "cannot X: cause".
    """

    def __init__(self, message: str, variable: str | None = None) -> None:
        super().__init__(message)
        self.variable = variable


@dataclass(frozen=True)
class Step:
    """Several nodes, on each of which the scheduler has started the same `ftlaunch` command once."""

    nodes: int
    """number of nodes, 2 or more"""
    nodes_in: str
    """the variable that says the number of nodes"""
    rank: int | None
    """this node's place among the nodes, from 0; None if unknown"""
    rank_in: str
    """the variable that says the node's place"""
    first_host: str
    """a name or address of the first node, at which the others reach it: the nodes meet there"""
    hosts_in: str
    """the variable that names the nodes"""
    job: str
    """name of the job: the same on all nodes, and the same again after the scheduler has requeued the job"""
    job_in: str
    """the variable that names the job"""


class Scheduler(Protocol):
    """Reads one scheduler's variables. No method waits, or looks at anything but its argument."""

    prefix: str
    """how the names of all of the scheduler's variables begin; Ray's agents start without such variables"""
    job_variable: str
    """the variable that names the job: by it, ranks without a supervisor tell their job from others"""

    def step(self, environ: Mapping[str, str]) -> Step | None:
        """Return the step in which a process with these variables runs.

        Returns:
            None if the process runs outside of the scheduler, or in a step of a single node.

        Raises:
            SchedulerError: the scheduler has started several tasks on a node, or its variables cannot be read.
        """

    def array_task(self, environ: Mapping[str, str]) -> str:
        """Return the number of a task among those of one array, which share a command but are different jobs.

        Returns:
            The number in at most nine digits; an empty text outside of an array.
        """
