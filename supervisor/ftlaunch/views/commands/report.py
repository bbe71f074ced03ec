"""The command `ftctl report`: what happened in a run dir and where the time went, as text, JSON or an HTML page."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ftlaunch.cli.asking import Cannot
from ftlaunch.cli.parameters import seconds
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.formatting import printable
from ftlaunch.history import goodput
from ftlaunch.history.report_view import report_data, report_lines
from ftlaunch.history.runs import find, locate
from ftlaunch.history.timeline import moments
from ftlaunch.views.commands.digest import digest, directory_of_runs
from ftlaunch.views.report_page.data import NoEvents
from ftlaunch.views.report_page.render import NAME, write_page


@click.command()
@click.argument("name", metavar="[RUN|DIR]", required=False, shell_complete=complete_run)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option(
    "--html",
    "page",
    metavar="[FILE]",
    is_flag=False,
    flag_value="",
    help="write a page for a browser: to FILE (its name ends in .html), or to report.html in the run dir",
)
@click.option("--since", callback=seconds, metavar="TIME", help="of a DIR, only what was within this time, as 7d")
def report(name: str | None, as_json: bool, page: str | None, since: float | None) -> int:
    """Tell what happened in a run dir, and where the time went.

    Of a DIR that holds run dirs: what all its jobs did, where their time went, which causes and nodes failed, and
    which node fails more often than chance explains.
    """
    if page is not None:
        click.echo(printable(f"the page is {_write_page(name, page)}"))
        return 0
    if (folder := directory_of_runs(name)) is not None:
        return digest(folder, since, as_json=as_json)
    if since is not None:
        raise click.UsageError("--since is for a directory of run dirs, such as `ftctl report runs --since 7d`")
    run = find(name)
    line = moments(run.events)
    if not line:
        raise Cannot(f"cannot report: the journal in {run.run_dir} has no whole event")
    story = goodput.build_story(line)
    click.echo(json.dumps(report_data(story), indent=1) if as_json else "\n".join(map(printable, report_lines(story))))
    return 0


def _write_page(name: str | None, file: str) -> Path:
    """Write the page of a run, and return the path of the page.

    Args:
        name: the run as the user named it.
        file: name of the page's file; empty for `report.html` in the run dir.

    Raises:
        Cannot: the page cannot be written.
        CannotFind: there is no such run.
    """
    if file and Path(file).suffix != ".html":
        raise Cannot(
            f"cannot write a page to {file}: the name of FILE must end in .html; if {file} is the run, write"
            f" `ftctl report {file} --html`"
        )
    if directory_of_runs(name) is not None:
        raise Cannot(
            f"cannot write a page of {name}: it holds many runs, and a page tells of one; name a run. What all of them"
            f" did is told in text by `ftctl report {name}`, or with --json"
        )
    run_dir = locate(name)
    path = Path(file) if file else run_dir / NAME
    try:
        write_page(run_dir, path)
    except OSError as error:
        raise Cannot(f"cannot write the page {path}: {error.filename or path}: {error.strerror or error}") from error
    except NoEvents as error:
        raise Cannot(f"cannot write the page {path}: {error}") from error
    return path
