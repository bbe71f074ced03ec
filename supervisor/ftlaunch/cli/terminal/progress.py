"""Shows the progress of a command's long work on stderr: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ftlaunch.common.formatting import printable
from ftlaunch_contract.progress import Advance, SlowWork, ignore, under_way


@contextmanager
def progress(doing: str, total: int | None, unit: str = "") -> Iterator[Advance]:
    """Show progress during the `with` block, in which nothing else may be printed.

    Args:
        doing: what is done, for example `verifying`.
        total: the amount of work in `unit`; None if unknown.
        unit: what is counted, in the plural; empty for bytes.

    Yields:
        A function that takes the amount of work done since its last call.
    """
    if sys.stderr is None:
        yield ignore
    elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb"):
        with _bar(doing, total, unit) as advance:
            yield advance
    else:
        slow = SlowWork(doing, total=total, say=_say, unit=unit)
        yield slow.advance
        slow.finish()


def _say(line: str) -> None:
    click.echo(printable(line), err=True)


@contextmanager
def _bar(doing: str, total: int | None, unit: str) -> Iterator[Advance]:
    # Rich takes longer to import than most commands take to run, so only a bar imports rich.
    from rich import progress as rich  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    class StateColumn(rich.ProgressColumn):
        """The work done, its rate, and the time left, in the words of the lines in a log."""

        def render(self, task: rich.Task) -> Text:
            return Text(under_way(int(task.completed), total, task.elapsed or 0.0, unit))

    columns = (
        rich.TextColumn(escape(printable(doing))),
        rich.BarColumn(bar_width=None, table_column=Column(ratio=1)),
        StateColumn(Column(no_wrap=True)),
    )
    # No redirection: rich would send the command's stdout to its own console, which is stderr.
    with rich.Progress(
        *columns, console=Console(stderr=True), transient=True, expand=True, redirect_stdout=False,
        redirect_stderr=False,
    ) as bars:  # fmt: skip
        task = bars.add_task("", total=total)
        yield lambda count: bars.advance(task, count)
