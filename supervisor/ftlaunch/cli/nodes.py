"""The commands `ftctl nodes ...`: other nodes for a running job. The head of the job decides, and answers."""

from __future__ import annotations

from typing import Any

import click

from ftlaunch.history.runs import find
from ftlaunch.system.control_socket import SOCKET, ask

_NO = 1  # exit code: the answer is no


class _Refused(click.ClickException):
    exit_code = _NO


@click.group()
def nodes() -> None:
    """Take in nodes that stand by, or let one leave: no step is lost, and no restart is counted."""


@nodes.command()
@click.argument("name", metavar="[RUN]", required=False)
def grow(name: str | None) -> int:
    """Take in the nodes that stand by, up to MAX of --nnodes MIN:MAX."""
    return _ask(name, {"do": "grow"})


@nodes.command()
@click.argument("node", metavar="NODE")
@click.argument("name", metavar="[RUN]", required=False)
def drain(node: str, name: str | None) -> int:
    """Let NODE, a place or a host, leave the job: its agent ends with exit code 75."""
    return _ask(name, {"do": "drain", "node": node})


def _ask(name: str | None, request: dict[str, Any]) -> int:
    run = find(name)
    where = f"cannot ask job {run.job_id}: "
    if run.elsewhere:
        raise _Refused(f"{where}its head runs on {run.elsewhere}; ask there")
    try:
        answer = ask(run.memory_dir / SOCKET, request)
    except (OSError, ValueError) as error:
        ended = "" if run.alive else "it is not running: "
        raise _Refused(f"{where}{ended}{getattr(error, 'strerror', None) or error}") from error
    if not answer["ok"]:
        raise _Refused(answer["error"])
    click.echo(answer["done"])
    return 0
