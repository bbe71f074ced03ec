"""`ftctl report DIR`: what the jobs of a directory did, and which node fails too often."""

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
    """The directory that `name` means, where it is one of runs, and no run itself."""
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
    """Print the digest of a directory of runs. since: seconds before now; None: all that the journals hold."""
    found = directory.digest(path, 0.0 if since is None else time.time() - since)
    click.echo(json.dumps(view.data(found), indent=1) if as_json else "\n".join(map(printable, view.lines(found))))
    return 0
