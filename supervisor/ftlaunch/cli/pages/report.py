"""`ftctl report`: what happened in a run dir, and where the time went."""

from __future__ import annotations

import json

import click

from ftlaunch.cli.asking import Cannot
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.formatting import printable
from ftlaunch.history import goodput
from ftlaunch.history.report_view import report_data, report_lines
from ftlaunch.history.runs import find
from ftlaunch.history.timeline import moments


@click.command()
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def report(name: str | None, as_json: bool) -> int:
    """Tell what happened in a run dir, and where the time went."""
    run = find(name)
    line = moments(run.events)
    if not line:
        raise Cannot(f"cannot report: the journal in {run.run_dir} has no whole event")
    story = goodput.tell(line)
    click.echo(json.dumps(report_data(story), indent=1) if as_json else "\n".join(map(printable, report_lines(story))))
    return 0
