"""The command `ftctl jobs`: all jobs of this user, running and past."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict

import click

from ftlaunch.cli.listing.rows import all_rows
from ftlaunch.cli.listing.table import job_lines


@click.command(short_help="List all jobs of this user, running and past.")
@click.option("--running", "only_running", is_flag=True, help="only those that run")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def jobs(only_running: bool, as_json: bool) -> int:
    """List all jobs of this user, running and past, the newest first.

    A job is known from its first start on, in whatever folder that was, until its run dir is deleted and it has ended.
    On a terminal long cells are cut in their middle; in a pipe they are whole.
    """
    rows = [row for row in all_rows() if row.running or not only_running]
    rows.sort(key=lambda row: row.started, reverse=True)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    elif rows:
        click.echo("\n".join(job_lines(rows, _width())))
    else:
        click.echo("no job is running" if only_running else "no jobs are known")
    return 0


def _width() -> int | None:
    """Return the columns of the terminal; None in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
