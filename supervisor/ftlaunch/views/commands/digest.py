"""The part of `ftctl report` for a directory of run dirs: what the jobs did, and which node fails too often."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from ftlaunch.cli.asking import Cannot
from ftlaunch.common.formatting import printable
from ftlaunch.history.journal import EVENTS
from ftlaunch.history.runs import RUNS
from ftlaunch.views.digest import directory, view


def directory_of_runs(name: str | None) -> Path | None:
    """Return the directory that `name` means if it is a directory of run dirs; None if `name` means a run.

    Raises:
        Cannot: the directory cannot be read.
    """
    if name is None:
        return None
    path = Path(name)
    try:
        is_job_id = "/" not in name and (RUNS / name / EVENTS).is_file()
        if (path / EVENTS).is_file() or is_job_id or not path.is_dir():
            return None
        return path if directory.run_dirs(path) else None
    except OSError as error:
        raise Cannot(f"cannot report: {name}: {(error.strerror or str(error)).lower()}") from error


def digest(path: Path, since: float | None, *, as_json: bool) -> int:
    """Print the digest of a directory of run dirs, and return the exit code.

    Args:
        path: the directory.
        since: length in seconds of the time up to now; None for all that the journals hold.
        as_json: print JSON instead of text.
    """
    found = directory.digest(path, 0.0 if since is None else time.time() - since)
    click.echo(json.dumps(view.data(found), indent=1) if as_json else "\n".join(map(printable, view.lines(found))))
    return 0
