"""The command `ftctl check`: whether a job could run on this machine, and how well."""

from __future__ import annotations

import json
import os
import time

import click

from ftlaunch.cli.parameters import BadSpec, seconds
from ftlaunch.spec.job_spec import JobSpec, SpecError
from ftlaunch.spec.notify_targets.notify_target import check_targets
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.resources import count_gpus
from ftlaunch.tools.preflight import checks, view
from ftlaunch.tools.preflight.rules import could_run

_NO = 1


@click.command(short_help="Check whether a job could run on this machine.")
@click.argument("job", metavar="[SPEC_OR_SCRIPT]", required=False)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option("--timeout", callback=seconds, default=f"{checks.RANKS_LIMIT_SECONDS:.0f}s", show_default=True,
              help="longest wait for the processes that are asked")  # fmt: skip
def check(job: str | None, as_json: bool, timeout: float) -> int:
    """Check whether a job could run on this machine: Python, torch, devices, memory, disk, locks, ranks, port, clock,
    limits.

    Without SPEC_OR_SCRIPT one rank for each GPU is tried, or one. Exit code 0: it could run, though there may be
    warnings; 1: it could not; 2: bad usage or job spec.
    """
    began = time.monotonic()
    try:
        spec = _spec(job)
        check_targets(spec.notify)
    except SpecError as error:
        raise BadSpec(str(error)) from None
    found = checks.check(spec, timeout)
    seconds = time.monotonic() - began
    if as_json:
        click.echo(json.dumps(view.data(found, seconds, spec.job_id), indent=1))
    else:
        click.echo(checks.say(found, seconds))
    return 0 if could_run(found) else _NO


def _spec(job: str | None) -> JobSpec:
    """Resolve the job to check; without one, use the module `true` as a stand-in, which the check never runs."""
    if job is not None:
        return resolve(job, (), {}, os.environ)
    ranks = "gpu" if count_gpus(os.environ) else "1"
    return resolve("torch", (), {"module": "true", "nproc_per_node": ranks, "job_id": "check"}, os.environ)
