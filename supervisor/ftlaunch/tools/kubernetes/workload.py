"""Describes one job as it will run in pods; the manifest is made from this description. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["jobset", "trainjob", "job"]
PORT = 29400
"""TCP port of the head in a JobSet and in an indexed Job"""
_TRAINER_PORT = 29500  # the default of Kubeflow's Trainer


@dataclass(frozen=True)
class Workload:
    """One job of one or more pods, each with one agent."""

    kind: Kind
    name: str
    """DNS label that names the JobSet, TrainJob or Job, and its Service"""
    image: str
    spec: Mapping[str, object]
    """the job spec that the pods read"""
    run_dir: str
    """absolute path below `path`"""
    nodes: int
    """greatest number of nodes with ranks"""
    standbys: int
    """number of pods that stand by"""
    ranks: int
    """ranks of a node"""
    gpus: int
    """GPUs of a node; 0 for none"""
    grace: float
    """seconds that ranks have to stop"""
    no_requeue_code: int
    """exit code of a job that was given up for a reason that another run would meet again"""
    shm: float
    """bytes of /dev/shm"""
    memory: float | None
    """bytes of a pod; None for no limit"""
    claim: str | None
    """the PersistentVolumeClaim of the volume that all pods share; None: each pod has an empty folder of its own"""
    path: str
    """absolute path at which the pods mount the volume"""

    @property
    def pods(self) -> int:
        """Number of pods, standbys included."""
        return self.nodes + self.standbys


def meeting_place(kind: Kind, name: str) -> str | None:
    """Return HOST:PORT of the first pod, where the pods meet; None if variables of the pods name the endpoint."""
    first = {"jobset": f"{name}-node-0-0.{name}", "job": f"{name}-0.{name}"}.get(kind)
    return None if first is None else f"{first}:{PORT}"


def trainer_variables(job: Workload) -> dict[str, str]:
    """Return the variables that the torch policy of Kubeflow's Trainer sets in the first pod of a TrainJob."""
    return {
        "PET_NNODES": str(job.nodes),
        "PET_NPROC_PER_NODE": str(job.ranks),
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": f"{job.name}-node-0-0.{job.name}",
        "PET_MASTER_PORT": str(_TRAINER_PORT),
    }
