"""What Slurm tells of a job step: its nodes, this node's place among them, and where they can meet. Pure.

It counts only in a step of several nodes with one task on each: `srun --ntasks-per-node=1 ftlaunch train.py`.
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
    """A step of several nodes, one task on each."""

    nodes: int
    rank: int | None
    """this node's place in the step"""
    host: str
    """the step's first node"""
    hosts_in: str
    """the variable that named it"""
    job: str
    """the same on all nodes, and after a requeue"""


def step_of(environ: Mapping[str, str]) -> SlurmStep | None:
    """The step in which a task with these variables runs; None outside of one, and where it has one node.

    Raises SpecError where a node runs several tasks, or where the hosts cannot be read.
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
    return (
        None if name is None else SlurmStep(nodes, _number(environ, "SLURM_NODEID"), _first(environ, name), name, job)
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text, re.ASCII) else None


def _job(environ: Mapping[str, str]) -> str | None:
    """A job of an array is named as squeue does. SLURM_RESTART_COUNT is left out: a requeued job goes on."""
    array, index = _number(environ, "SLURM_ARRAY_JOB_ID"), _number(environ, "SLURM_ARRAY_TASK_ID")
    if array is not None and index is not None:
        return f"slurm-{array}_{index}"
    job = _number(environ, "SLURM_JOB_ID")
    return None if job is None else f"slurm-{job}"


def _first(environ: Mapping[str, str], name: str) -> str:
    try:
        return host_list.expand(environ[name])[0]
    except ValueError as error:
        raise SpecError(f"cannot use {name}={shown(environ[name])}: {error}") from None
