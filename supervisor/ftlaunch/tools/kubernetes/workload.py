"""What a manifest is made from: one job, as it will run in pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["jobset", "trainjob", "job"]
PORT = 29400
"""at which the head listens in a JobSet and in an indexed Job"""
_TRAINER_PORT = 29500


@dataclass(frozen=True)
class Workload:
    """One job of one or more pods, each with one agent."""

    kind: Kind
    name: str
    """a DNS label: of the JobSet, TrainJob or Job, and of its Service"""
    image: str
    spec: Mapping[str, object]
    """the job spec that the pods read"""
    run_dir: str
    """below `path`"""
    nodes: int
    """the most nodes that have ranks"""
    standbys: int
    ranks: int
    """of a node"""
    gpus: int
    """of a node; 0 is none"""
    grace: float
    """seconds"""
    no_requeue_code: int
    """exit code of a job given up for a reason that would come again"""
    shm: float
    """bytes of /dev/shm"""
    memory: float | None
    """bytes of a pod; None is no limit"""
    claim: str
    """the PersistentVolumeClaim of the volume that all pods share"""
    path: str
    """where the pods see it"""

    @property
    def pods(self) -> int:
        """How many pods there are."""
        return self.nodes + self.standbys


def meeting_place(kind: Kind, name: str) -> str | None:
    """The endpoint at which the pods meet: that of the first one; None where the pods' variables name it."""
    first = {"jobset": f"{name}-node-0-0.{name}", "job": f"{name}-0.{name}"}.get(kind)
    return None if first is None else f"{first}:{PORT}"


def trainer_variables(job: Workload) -> dict[str, str]:
    """The variables that Kubeflow's Trainer gives to the first pod of a TrainJob under its torch policy."""
    return {
        "PET_NNODES": str(job.nodes),
        "PET_NPROC_PER_NODE": str(job.ranks),
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": f"{job.name}-node-0-0.{job.name}",
        "PET_MASTER_PORT": str(_TRAINER_PORT),
    }
