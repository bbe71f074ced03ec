"""Writes report.html: a reader sees the old page or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ftlaunch.views.report_page.data import page_data
from ftlaunch.views.report_page.render import render

NAME = "report.html"


def write_page(run_dir: Path, path: Path) -> int:
    """Write the page of a run dir to `path`, for its owner alone; returns its bytes. Raises OSError or NoEvents."""
    document = render(page_data(run_dir)).encode()
    fd, written = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(document)
        Path(written).replace(path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            Path(written).unlink()
        raise
    return len(document)
