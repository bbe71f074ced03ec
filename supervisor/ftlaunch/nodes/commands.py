"""The commands `ftctl nodes` and `ftctl drain`: list the nodes of a job, take some in, let one leave."""

from __future__ import annotations

import json

import click

from ftlaunch.cli.asking import NO, NotRunning, ask_job
from ftlaunch.cli.parameters import PlaceFirst
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.formatting import printable
from ftlaunch.history.nodes_view import node_lines
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import find_to_ask


@click.group(cls=PlaceFirst, invoke_without_command=True, short_help="List the nodes of a job, or command one.")
@click.argument("place", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.pass_context
def nodes(context: click.Context, place: str | None, as_json: bool) -> int | None:
    """List the nodes of a running job: places, hosts, ranks, failures; or do something with one.

    RUN is a run dir or a job id; without it, the only run in ./runs. It can be asked on any node of the job.
    """
    context.obj = place or None
    if context.invoked_subcommand is not None:
        return None
    answer = asked(context.obj, {"do": "nodes"})
    if answer is None:
        return NO
    click.echo(json.dumps(answer, indent=1) if as_json else "\n".join(map(printable, node_lines(answer))))
    return 0


@nodes.command(short_help="Take in nodes that stand by.")
@click.pass_obj
def grow(name: str | None) -> int:
    """Take in the nodes that stand by, up to MAX of --nnodes MIN:MAX: no step is lost, and no restart is counted."""
    return _command(name, {"do": "grow"})


@nodes.command(short_help="Count the failures of a node from nothing again.")
@click.argument("node")
@click.pass_obj
def forgive(name: str | None, node: str) -> int:
    """Count the failures that began on a node from nothing again, so that it may get ranks.

    NODE is a host name, or the place that the node has now.
    """
    answer = asked(name, {"do": "forgive", "node": node})
    if answer is None:
        return NO
    count = answer["forgiven"]
    click.echo(printable(f"{answer['hosts']}: {count} failure{'' if count == 1 else 's'} forgiven"))
    return 0


@click.command()
@click.argument("node")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
def drain(node: str, name: str | None) -> int:
    """Let a node leave a job of several: no step is lost, and its agent ends with exit code 75.

    NODE is a host name, or the place that the node has now; `ftctl nodes` lists them. A node that stands by takes its
    place, or the job goes on with fewer nodes where --nnodes MIN:MAX allows it.
    """
    return _command(name, {"do": "drain", "node": node, "why": "ftctl drain"})


def _command(name: str | None, request: dict[str, object]) -> int:
    answer = asked(name, request)
    if answer is None:
        return NO
    click.echo(printable(str(answer["done"])))
    return 0


def asked(name: str | None, request: dict[str, object]) -> dict[str, object] | None:
    """What a running job answers; None where it is not running, which is said. Raises Cannot or CannotFind."""
    run = find_to_ask(name)
    try:
        return ask_job(run, name, request)
    except NotRunning:
        click.echo(printable(f"job {run.job_id} is not running: {ending(run.reload().end)}"))
        return None
