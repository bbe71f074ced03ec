"""How the rows of `ftctl jobs` look in a terminal, and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ftlaunch.cli.listing.rows import JobRow
from ftlaunch.common.formatting import fitted, printable, table

_LEFT = (0, 1, 3, 4, 5)  # columns of words


def job_lines(rows: Sequence[JobRow], width: int | None) -> list[str]:
    """A line for each row, below a head. width: columns of the terminal; None: every cell is whole."""
    stamps = [stamp for row in rows if (stamp := _local(row.started)) is not None]
    zone = f" ({stamps[0]:%Z})" if stamps else ""
    cells = [
        ("job", "state", "step", f"started{zone}", "run dir", "last incident or problem"),
        *map(_cells, rows),
    ]
    cells = [tuple(map(printable, row)) for row in cells]
    return table(cells if width is None else fitted(cells, width), left=_LEFT)


def _cells(row: JobRow) -> tuple[str, ...]:
    step = "-" if row.step is None else str(row.step)
    stamp = _local(row.started)
    started = "-" if stamp is None else f"{stamp:%Y-%m-%d %H:%M}"
    return row.job_id, row.state, step, started, row.run_dir, row.problem or row.incident


def _local(stamp: str) -> datetime | None:
    """A journal's time in the zone of this machine, as `ftctl report` shows it."""
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError, OSError):
        return None
