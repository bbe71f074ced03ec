"""The command `ftctl kubernetes`: writes the manifest of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast

import click

from ftlaunch.cli.parameters import BadSpec
from ftlaunch.common.rates import parse_size
from ftlaunch.spec.errors import Given, SpecError
from ftlaunch.spec.resolve import asked_of
from ftlaunch.spec.yaml_file import read_spec_file
from ftlaunch.tools.kubernetes.kinds import documents
from ftlaunch.tools.kubernetes.translate import PodOptions, workload
from ftlaunch.tools.kubernetes.workload import Kind
from ftlaunch.tools.kubernetes.writing import manifest

_IMAGE = "ftlaunch:0.1.0"
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def _size(_context: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else parse_size(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 16GiB") from None


def _volume(_context: click.Context, _param: click.Parameter, text: str) -> tuple[str, str]:
    claim, colon, path = text.partition(":")
    if not colon or not _CLAIM.fullmatch(claim):
        raise click.BadParameter(f"{text!r} is not the name of a claim, a colon and a path; write shared:/shared")
    folder = PurePosixPath(path)
    if not folder.is_absolute() or ".." in folder.parts or len(folder.parts) == 1:
        raise click.BadParameter(f"{path!r} is not an absolute path below /; write shared:/shared")
    return claim, str(folder)


@click.command(short_help="Write the manifest of a job for Kubernetes.")
@click.argument("spec", metavar="JOB.yaml", type=click.Path(exists=True, dir_okay=False))
@click.option("--kind", type=click.Choice(("jobset", "trainjob", "job")), default="jobset", show_default=True,
              help="what runs the pods: a JobSet, a TrainJob of Kubeflow's Trainer, or an indexed Job")  # fmt: skip
@click.option("--image", default=_IMAGE, show_default=True, help="the image, with a tag that does not move")
@click.option("--nodes", type=click.IntRange(1, 1000), help="nodes that train [default: nnodes of the spec]")
@click.option("--standby", "standbys", type=click.IntRange(0, 100), default=0, show_default=True,
              help="pods besides, which stand by")  # fmt: skip
@click.option("--gpus", type=click.IntRange(0, 64), default=0, show_default=True, help="GPUs of a node")
@click.option("--shm", callback=_size, metavar="SIZE", default="8GiB", show_default=True,
              help="room in /dev/shm: three times the state of a node's ranks")  # fmt: skip
@click.option("--memory", callback=_size, metavar="SIZE", help="memory of a pod, /dev/shm included [default: no limit]")
@click.option("--volume", callback=_volume, metavar="CLAIM:PATH", default="shared:/shared", show_default=True,
              help="the claim of the volume that all pods share, and where they see it")  # fmt: skip
@click.option("--no-volume", is_flag=True, help="pods share nothing: checkpoints go to a bucket")
def kubernetes(spec: str, volume: tuple[str, str], no_volume: bool, **options: Any) -> int:
    """Write the manifest of a job for Kubernetes to stdout: the job spec as a ConfigMap, and the pods that run it.

    The Secret with the job's token and the volume are not in it. What is not as JOB.yaml says is told on stderr.
    """
    claim, path = (None, volume[1]) if no_volume else volume
    kind = cast(Kind, options.pop("kind"))

    def ask(raws: Mapping[str, object], variables: Mapping[str, str]) -> Mapping[str, Given]:
        return asked_of(spec, raws, variables)

    try:
        raws = read_spec_file(spec, os.environ)
        pod_options = PodOptions(kind=kind, claim=claim, path=path, **options)
        job, notes = workload(raws, stem=Path(spec).stem, options=pod_options, ask=ask)
    except SpecError as error:
        raise BadSpec(str(error)) from None
    for note in notes:
        click.echo(f"ftctl: {note}", err=True)
    click.echo(manifest(documents(job)), nl=False)
    return 0
