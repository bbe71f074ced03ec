"""Reads what Slurm's variables say of a job step: its nodes, this node's place, and where the nodes can meet. Pure.

The variables count only in a step of several nodes with one task on each: `srun --ntasks-per-node=1 ftlaunch train.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ftlaunch.spec.errors import SpecError, shown
from ftlaunch.spec.nodes import host_list

_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")


class SlurmStep(NamedTuple):
    """A step of several nodes with one task on each."""

    nodes: int
    """number of nodes"""
    rank: int | None
    """place of this node in the step; None if unknown"""
    host: str
    """first node of the step"""
    hosts_in: str
    """variable that names the nodes"""
    job: str
    """name of the job, the same on all nodes and after a requeue"""


def step_of(environ: Mapping[str, str]) -> SlurmStep | None:
    """Return the step in which a process with these variables runs; None outside of a step with several nodes.

    Raises:
        SpecError: a node runs several tasks, or the list of nodes cannot be read.
    """
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    nodes = next((count for name in _COUNTS if (count := _number(environ, name)) is not None), None)
    job = _job(environ)
    if "SLURM_STEP_ID" not in environ or tasks is None or nodes is None or job is None:
        return None
    if tasks > nodes:
        raise SpecError(
            f"cannot start in a Slurm step of {tasks} tasks on {nodes} {'node' if nodes == 1 else 'nodes'}: ftlaunch"
            " starts the ranks of a node itself; write `srun --ntasks-per-node=1` and `--nproc-per-node`"
        )
    if nodes == 1 or tasks < nodes:
        return None
    name = next((name for name in _HOSTS if environ.get(name)), None)
    if name is None:
        return None
    return SlurmStep(
        nodes=nodes,
        rank=_number(environ, "SLURM_NODEID"),
        host=_first_host(environ, name),
        hosts_in=name,
        job=job,
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    """Return the number in a variable; None if there is none."""
    text = environ.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text, re.ASCII) else None


def _job(environ: Mapping[str, str]) -> str | None:
    """Return the name of the Slurm job, and of a task of an array as squeue names it; None if there is none.

    SLURM_RESTART_COUNT is not a part of the name, because a requeued job goes on as the same job.
    """
    array = _number(environ, "SLURM_ARRAY_JOB_ID")
    index = _number(environ, "SLURM_ARRAY_TASK_ID")
    if array is not None and index is not None:
        return f"slurm-{array}_{index}"
    job = _number(environ, "SLURM_JOB_ID")
    return None if job is None else f"slurm-{job}"


def _first_host(environ: Mapping[str, str], name: str) -> str:
    """Return the first host of the list in a variable. Raises SpecError if the list cannot be read."""
    try:
        return host_list.expand(environ[name])[0]
    except ValueError as error:
        raise SpecError(f"cannot use {name}={shown(environ[name])}: {error}") from None
