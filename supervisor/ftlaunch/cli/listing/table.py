"""Formats the rows of `ftctl jobs` as a table, for a terminal or a pipe. Pure, but for this machine's time zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ftlaunch.cli.listing.rows import JobRow
from ftlaunch.common.formatting import fitted, printable, table

_LEFT_ALIGNED = (0, 1, 3, 4, 5)  # columns with text


def job_lines(rows: Sequence[JobRow], width: int | None) -> list[str]:
    """Return a heading and a line for each row.

    Args:
        rows: the jobs, in the order of the lines.
        width: columns of the terminal, to which long cells are cut; None for no cutting.
    """
    stamps = [stamp for row in rows if (stamp := _local(row.started)) is not None]
    zone = f" ({stamps[0]:%Z})" if stamps else ""
    cells = [
        ("job", "state", "step", f"started{zone}", "run dir", "last incident or problem"),
        *map(_cells, rows),
    ]
    cells = [tuple(map(printable, row)) for row in cells]
    return table(cells if width is None else fitted(cells, width), left=_LEFT_ALIGNED)


def _cells(row: JobRow) -> tuple[str, ...]:
    step = "-" if row.step is None else str(row.step)
    stamp = _local(row.started)
    started = "-" if stamp is None else f"{stamp:%Y-%m-%d %H:%M}"
    return row.job_id, row.state, step, started, row.run_dir, row.problem or row.incident


def _local(stamp: str) -> datetime | None:
    """Convert a journal's time to this machine's time zone; None if the time cannot be parsed."""
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError, OSError):
        return None
