"""Translates a job spec into the resources that Ray reserves and the command line of each agent. Pure.

`command` calls `ray_job` once; `launcher` and `session` read the resulting `RayJob`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch.cli.options import Request
from ftlaunch.spec import shown
from ftlaunch.spec.errors import SpecError, one_line
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsers import Endpoint

NO_ENDPOINT = "first-node.invalid"
"""placeholder for an endpoint that the user did not give: the nodes then meet at the first node that Ray chooses"""
_REPLACED_OPTIONS = ("nnodes", "nproc_per_node", "rdzv_endpoint")  # `agent_words` writes these anew for each agent
_MAX_DIGITS = 6


@dataclass(frozen=True)
class RayJob:
    """A job, and the resources that the job takes of a Ray cluster."""

    spec: JobSpec
    words: tuple[str, ...]
    """the part of the agents' command line that is the same on each node"""
    environ: Mapping[str, str]
    """the driver's environment, which `hosts.launcher.build_agent_order` reads"""
    spare: int
    """number of standby nodes besides those of `--nnodes`"""
    use_gpu: bool
    """whether Ray reserves a GPU for each rank"""

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Resources to reserve, one mapping per node: a CPU for each rank, and with `use_gpu` a GPU for each rank."""
        ranks = float(self.spec.launch.nproc)
        resources = {"CPU": ranks, "GPU": ranks} if self.use_gpu else {"CPU": ranks}
        return [resources.copy() for _ in range(self.spec.nodes.most + self.spare)]

    @property
    def meets_at_first(self) -> bool:
        """Whether the nodes of the job meet at the first node, on a port that is free there."""
        nodes = self.spec.nodes
        return nodes.several and nodes.store is None and nodes.address == NO_ENDPOINT

    def agent_words(self, place: int | None, first: Endpoint | None) -> list[str]:
        """Return the command line of one agent.

        Args:
            place: the node rank of the agent; None for a standby agent.
            first: address of the first node if `meets_at_first`; otherwise None.
        """
        nodes = self.spec.nodes
        options = [f"--nnodes={shown.node_range(nodes.least, nodes.most)}"]
        if place is not None and nodes.several:
            options.append(f"--node-rank={place}")
        if nodes.store is not None:
            options.append(f"--rdzv-endpoint={nodes.store}")
        elif nodes.several:
            options.append(f"--rdzv-endpoint={first or Endpoint(nodes.address or '', nodes.port)}")
        return [*options, f"--nproc-per-node={self.spec.launch.nproc}", *self.words]


def ray_job(spec: JobSpec, request: Request, environ: Mapping[str, str]) -> RayJob:
    """Build the job that a command line asks for.

    Raises:
        SpecError: Ray cannot run such a job.
    """
    nodes = spec.nodes
    spare = _whole(request.own["spare"])
    if request.detach:
        raise SpecError("cannot use `--detach` with Ray: `ray job submit` runs what is to outlive a terminal")
    nproc = request.flags.get("nproc_per_node", "1")
    if not nproc.isdigit():
        raise SpecError(
            f"cannot use `--nproc-per-node {nproc}`: Ray reserves what is asked for, and needs a number;"
            " with `--use-gpu` it reserves a GPU for each rank"
        )
    if nodes.hosts:
        raise SpecError("cannot use `--hosts` or `--hostfile`: Ray chooses the nodes; leave it out")
    if nodes.rank is not None:
        raise SpecError(f"cannot use `--node-rank {nodes.rank}`: Ray gives each node a place of its own; leave it out")
    if spare and not nodes.several:
        raise SpecError(f"cannot use `--spare {spare}`: a job of one node has no node that stands by; give `--nnodes`")
    if nodes.store is not None and NO_ENDPOINT in str(nodes.store):
        raise SpecError(
            f"cannot use `--rdzv-backend {nodes.backend}`: where is {nodes.backend}? give `--rdzv-endpoint"
            " HOST:PORT,...`"
        )
    agent_environ = {name: value for name, value in environ.items() if value != NO_ENDPOINT}
    return RayJob(
        spec=spec,
        words=tuple(request.words(without=_REPLACED_OPTIONS)),
        environ=agent_environ,
        spare=spare,
        use_gpu=bool(request.own["use_gpu"]),
    )


def _whole(spare: str) -> int:
    if not (spare.isascii() and spare.isdigit() and len(spare) < _MAX_DIGITS):
        raise SpecError(f"cannot use `--spare {one_line(spare)}`: it must be a whole number, 0 or more")
    return int(spare)
