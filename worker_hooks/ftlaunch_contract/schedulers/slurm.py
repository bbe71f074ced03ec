"""Reads what Slurm's variables say of a job step: its nodes, this node's place, and where the nodes can meet. Pure.

The variables count only in a step of several nodes with one task on each: `srun --ntasks-per-node=1 ftlaunch train.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftlaunch_contract.schedulers import host_list
from ftlaunch_contract.schedulers.scheduler import SchedulerError, Step

_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")


class Slurm:
    """Slurm: `srun` starts a step. Implements Scheduler."""

    prefix = "SLURM_"
    job_variable = "SLURM_JOB_ID"

    def step(self, environ: Mapping[str, str]) -> Step | None:
        """Return the step in which a process with these variables runs; None outside of a step with several nodes.

        Raises:
            SchedulerError: a node runs several tasks, or the list of nodes cannot be read.
        """
        tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
        nodes = next((count for name in _COUNTS if (count := _number(environ, name)) is not None), None)
        job = _job(environ)
        if "SLURM_STEP_ID" not in environ or tasks is None or nodes is None or job is None:
            return None
        if tasks > nodes:
            raise SchedulerError(
                f"cannot start in a Slurm step of {tasks} tasks on {nodes} {'node' if nodes == 1 else 'nodes'}:"
                " ftlaunch starts the ranks of a node itself; write `srun --ntasks-per-node=1` and `--nproc-per-node`"
            )
        if nodes == 1 or tasks < nodes:
            return None
        hosts_in = next((name for name in _HOSTS if environ.get(name)), None)
        if hosts_in is None:
            return None
        return Step(
            nodes=nodes,
            nodes_in=_COUNTS[0],
            rank=_number(environ, "SLURM_NODEID"),
            rank_in="SLURM_NODEID",
            first_host=_first_host(environ, hosts_in),
            hosts_in=hosts_in,
            job=job,
            job_in=self.job_variable,
        )

    def array_task(self, environ: Mapping[str, str]) -> str:
        """Return the number of a task of an array as digits; empty outside of an array."""
        task = environ.get("SLURM_ARRAY_TASK_ID", "") if "SLURM_ARRAY_JOB_ID" in environ else ""
        return task if re.fullmatch("[0-9]{1,9}", task, re.ASCII) else ""


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
    """Return the first host of the list in a variable. Raises SchedulerError if the list cannot be read."""
    try:
        return host_list.expand(environ[name])[0]
    except ValueError as error:
        raise SchedulerError(str(error), variable=name) from None
