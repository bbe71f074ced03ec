"""From the command line to a job on a Ray cluster, and its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from ftlaunch.cli.launch import Begun, run_command
from ftlaunch.cli.options import Request
from ftlaunch.nodes.agent.hosts.outlet import Outlet
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch_ray.job import NO_ENDPOINT, ray_job

_FAREWELL = 2.0  # seconds that the last lines may take on their way to the terminal
_OWN = (
    click.Option(["--spare"], default="0", metavar="K",
                 help="nodes of the Ray cluster that stand by, besides those of --nnodes [0]"),
    click.Option(["--use-gpu"], is_flag=True, help="have Ray reserve a GPU for each rank"),
)  # fmt: skip


def run(argv: Sequence[str]) -> int:
    """Run a job on the Ray cluster that RAY_ADDRESS names, or that this machine is a node of; returns the exit code.

    argv: the options of `ftlaunch`, --spare and --use-gpu, then the script and its arguments. Main thread only.
    """
    return run_command(argv, _environ(os.environ), _start, _OWN)


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that count: Ray chooses the nodes, also where a Slurm step has started it."""
    plain = {name: value for name, value in environ.items() if not name.startswith("SLURM_")}
    return {"PET_RDZV_ENDPOINT": NO_ENDPOINT, **plain}


def _start(spec: JobSpec, request: Request, environ: Mapping[str, str], _: Begun) -> int:
    job = ray_job(spec, request, environ)
    try:  # only now: a refused spec, --help and --dry-run answer without loading Ray
        from ftlaunch_ray import cluster, launcher  # noqa: PLC0415
    except ImportError as error:
        raise SpecError(
            f"cannot start on Ray: {error}; install it on every node of the cluster: pip install 'ftlaunch[ray]'"
        ) from None
    outlets = Outlet(sys.stdout.fileno()), Outlet(sys.stderr.fileno())
    with cluster.connected():
        code = launcher.run(job, outlets)
    for outlet in outlets:
        outlet.close(_FAREWELL)
    return code
