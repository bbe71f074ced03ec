"""The command `ftctl top`: shows a running job live, on the whole screen or in plain lines.

Textual belongs to the extra `top`, and is imported only for the whole screen.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ftlaunch.cli.asking import NO, Cannot, NotRunning, ask_job, say_that_it_goes_on
from ftlaunch.cli.terminal.completion import complete_run
from ftlaunch.common.formatting import printable
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import Run, load_newest, locate
from ftlaunch.views.top import plain as plain_lines
from ftlaunch.views.top.job_watch import JobWatch, Unanswered

_INSTALL = (
    "cannot show the job on the whole screen: Textual is not installed; `pip install 'ftlaunch[top]'` brings it, and"
    " `ftctl top --plain` works without it"
)


@click.command(short_help="Watch a running job, live.")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--plain", is_flag=True, help="lines, not the whole screen; so it is also in a pipe and with TERM=dumb")
def top(name: str | None, plain: bool) -> int:
    """Watch a running job: its ranks, the worst first, its speed, and what happens to it.

    Keys: arrows choose a rank, l shows its log, s its stacks, n the nodes; x stops the job, after a question; q leaves.
    When the supervisor is killed and started again, this goes on. In plain lines it ends when the job ends.
    """
    run = load_newest(locate(name))
    watch = JobWatch(run, lambda run, request: _ask(run, name, request))
    try:
        ask_job(run, name, {"do": "status"})
    except NotRunning:
        click.echo(printable(f"job {run.job_id} is not running: {ending(load_newest(run.run_dir).end)}"))
        return NO
    try:
        farewell = _in_lines(watch) if plain or _is_plain() else _on_screen(watch, name)
    except KeyboardInterrupt:
        return say_that_it_goes_on(run)
    if farewell:
        click.echo(printable(farewell))
    return 0


def _is_plain() -> bool:
    """Return whether stdin and stdout are not both a terminal with a screen."""
    has_stdio = sys.stdin is not None and sys.stdout is not None
    is_terminal = has_stdio and sys.stdin.isatty() and sys.stdout.isatty()
    return not is_terminal or os.environ.get("TERM", "dumb") in ("", "dumb")


def _ask(run: Run, name: str | None, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return ask_job(run, name, request)
    except NotRunning:
        why = "its supervisor is gone and has told no end: it was killed, or starts again"
        raise Unanswered(f"not running: {why}; waiting for it", gone=True) from None
    except Cannot as refusal:
        raise Unanswered(f"no answer: {refusal.message}; asking again", gone=False) from None


def _in_lines(watch: JobWatch) -> str:
    try:
        return f"job {watch.run.job_id}: {plain_lines.follow(watch, _say)}"
    except BrokenPipeError:
        raise  # the reader of the pipe has gone, which is no error of the job
    except OSError as error:
        raise Cannot(f"cannot show job {watch.run.job_id}: {error.filename}: {error.strerror}") from error


def _say(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()


def _on_screen(watch: JobWatch, name: str | None) -> str:
    try:
        from ftlaunch.views.top.fullscreen.app import TopScreen  # noqa: PLC0415 - Textual is an extra
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in ("textual", "rich"):
            raise
        raise Cannot(_INSTALL) from None
    return TopScreen(watch, lambda: _stop(watch.run, name)).run() or ""


def _stop(run: Run, name: str | None) -> str:
    try:
        ask_job(run, name, {"do": "stop", "why": "ftctl top"})
    except NotRunning:
        return f"job {run.job_id} is not running: nothing is asked to stop"
    except Cannot as refusal:
        return str(refusal.message)
    return f"job {run.job_id} is asked to stop"
