"""The table of schedulers, and what all of them together say. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch_contract.schedulers.scheduler import Scheduler, Step
from ftlaunch_contract.schedulers.slurm import Slurm

SCHEDULERS: list[Scheduler] = [Slurm()]
"""the known schedulers; the first whose variables describe a step decides"""


def step_of(environ: Mapping[str, str]) -> Step | None:
    """Return the step of several nodes in which a process with these variables runs, or None if there is none.

    Raises:
        SchedulerError: the step cannot be used.
    """
    steps = (scheduler.step(environ) for scheduler in SCHEDULERS)
    return next((step for step in steps if step is not None), None)


def array_task(environ: Mapping[str, str]) -> str:
    """Return the number of this task among those of a scheduler's array, as digits; empty outside of an array."""
    tasks = (scheduler.array_task(environ) for scheduler in SCHEDULERS)
    return next((task for task in tasks if task), "")


def job_variables() -> tuple[str, ...]:
    """Return the variables that name the job of each scheduler."""
    return tuple(scheduler.job_variable for scheduler in SCHEDULERS)


def prefixes() -> tuple[str, ...]:
    """Return how the names of the schedulers' variables begin."""
    return tuple(scheduler.prefix for scheduler in SCHEDULERS)
