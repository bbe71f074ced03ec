"""How far a command's long work has come: a bar on a terminal, a line now and then in a log; on standard error."""

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
    """Gives what is to be told of work that is done. Nothing else may be printed meanwhile.

    doing: `verifying`. total: None where it is not known. unit: what is counted, in the plural; empty: bytes.
    """
    if sys.stderr is None:
        yield ignore
    elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb"):
        with _bar(doing, total, unit) as advance:
            yield advance
    else:
        slow = SlowWork(doing, total, _say, unit)
        yield slow.advance
        slow.finish()


def _say(line: str) -> None:
    click.echo(printable(line), err=True)


@contextmanager
def _bar(doing: str, total: int | None, unit: str) -> Iterator[Advance]:
    # Rich takes longer to import than most commands take: only where a bar is drawn
    from rich import progress as rich  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    class WayColumn(rich.ProgressColumn):
        """How far it is, how fast, and what is left, as a line in a log says it."""

        def render(self, task: rich.Task) -> Text:
            return Text(under_way(int(task.completed), total, task.elapsed or 0.0, unit))

    columns = (
        rich.TextColumn(escape(printable(doing))),
        rich.BarColumn(bar_width=None, table_column=Column(ratio=1)),
        WayColumn(Column(no_wrap=True)),
    )
    # what is printed goes where it always goes: redirected, it would come out on standard error
    with rich.Progress(
        *columns, console=Console(stderr=True), transient=True, expand=True, redirect_stdout=False,
        redirect_stderr=False,
    ) as bars:  # fmt: skip
        task = bars.add_task("", total=total)
        yield lambda count: bars.advance(task, count)
