"""The command `ftlaunch_ray`: reads the command line, runs the job on the Ray cluster, returns the exit code.

Everything here runs on the main thread of the driver process, which installs signal handlers.
"""

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
from ftlaunch_contract.schedulers import table as schedulers
from ftlaunch_ray.job import NO_ENDPOINT, ray_job

_FLUSH_SECONDS = 2.0  # time for the last lines to reach the terminal
OWN_OPTIONS = (
    click.Option(["--spare"], default="0", metavar="K",
                 help="nodes of the Ray cluster that stand by, besides those of --nnodes [0]"),
    click.Option(["--use-gpu"], is_flag=True, help="have Ray reserve a GPU for each rank"),
)  # fmt: skip
"""options that `ftlaunch` does not have"""


def run(argv: Sequence[str]) -> int:
    """Run a job on the Ray cluster that RAY_ADDRESS names, or on the cluster that this machine is a node of.

    Call only from the main thread.

    Args:
        argv: options of `ftlaunch`, `--spare` and `--use-gpu`, then the script and its arguments.

    Returns:
        The exit code of the job, or that of a refused command line.
    """
    return run_command(argv, environ=agent_environ(os.environ), start=_start, own=OWN_OPTIONS)


def agent_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without a scheduler's variables, and with a placeholder for the rendezvous endpoint.

    Ray chooses the nodes, even if a scheduler's step started the Ray cluster.
    """
    plain = {name: value for name, value in environ.items() if not name.startswith(schedulers.prefixes())}
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
        outlet.close(_FLUSH_SECONDS)
    return code
