"""Writes report.html atomically: a reader sees either the old page or the new page, whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ftlaunch.views.report_page.data import page_data
from ftlaunch.views.report_page.render import render

NAME = "report.html"


def write_page(run_dir: Path, path: Path) -> int:
    """Write the page of a run dir to `path`, readable only by its owner, and return its size in bytes.

    Raises:
        OSError: the journal cannot be read, or the page cannot be written.
        NoEvents: the journal has no whole event.
    """
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
