"""What is asked of Ray, and what each agent is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch.cli.options import Request
from ftlaunch.spec import shown
from ftlaunch.spec.errors import SpecError, one_line
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsers import Endpoint

NO_ENDPOINT = "first-node.invalid"
"""the endpoint of a job for which nobody gave one: it is the first node that Ray chooses"""
_INSTEAD = ("nnodes", "nproc_per_node", "rdzv_endpoint")  # options that agents are not given as they were written
_MOST_DIGITS = 6


@dataclass(frozen=True)
class RayJob:
    """A job, and what its nodes take of a Ray cluster."""

    spec: JobSpec
    words: tuple[str, ...]
    """the command line of the agents, but for what is different on each node"""
    environ: Mapping[str, str]
    spare: int
    use_gpu: bool

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The resources of each node: a CPU, and a GPU if asked, for each rank."""
        ranks = float(self.spec.launch.nproc)
        one = {"CPU": ranks, "GPU": ranks} if self.use_gpu else {"CPU": ranks}
        return [dict(one) for _ in range(self.spec.nodes.most + self.spare)]

    @property
    def meets_at_first(self) -> bool:
        """Whether the nodes meet at the first of them, at a port that is free there."""
        nodes = self.spec.nodes
        return nodes.several and nodes.etcd is None and nodes.address == NO_ENDPOINT

    def agent_words(self, place: int | None, first: Endpoint | None) -> list[str]:
        """The command line of an agent. place: of its own, None where it stands by. first: see `meets_at_first`."""
        nodes = self.spec.nodes
        options = [f"--nnodes={shown.node_range(nodes.least, nodes.most)}"]
        if place is not None and nodes.several:
            options.append(f"--node-rank={place}")
        if nodes.etcd is not None:
            options.append(f"--rdzv-endpoint={nodes.etcd}")
        elif nodes.several:
            options.append(f"--rdzv-endpoint={first or Endpoint(nodes.address or '', nodes.port)}")
        return [*options, f"--nproc-per-node={self.spec.launch.nproc}", *self.words]


def ray_job(spec: JobSpec, request: Request, environ: Mapping[str, str]) -> RayJob:
    """The job that a command line asks for. Raises SpecError where Ray cannot run it."""
    nodes, spare = spec.nodes, _whole(request.own["spare"])
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
    if nodes.backend == "etcd" and NO_ENDPOINT in str(nodes.etcd):
        raise SpecError("cannot use `--rdzv-backend etcd`: where is etcd? give `--rdzv-endpoint HOST:PORT,...`")
    agents = {name: value for name, value in environ.items() if value != NO_ENDPOINT}
    return RayJob(spec, tuple(request.words(without=_INSTEAD)), agents, spare, bool(request.own["use_gpu"]))


def _whole(spare: str) -> int:
    if not (spare.isascii() and spare.isdigit() and len(spare) < _MOST_DIGITS):
        raise SpecError(f"cannot use `--spare {one_line(spare)}`: it must be a whole number, 0 or more")
    return int(spare)
