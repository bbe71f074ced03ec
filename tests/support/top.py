"""`ftctl top` of a job, in a terminal."""

from __future__ import annotations

import sys

from tests.support.harness import FtJob
from tests.support.terminals import Terminal

TOP = [sys.executable, "-m", "ftlaunch.cli.ctl", "top"]


def watched(job: FtJob, *, lines: int = 24, columns: int = 80, **env: str) -> Terminal:
    """Return a terminal in which `ftctl top` runs until the end of the `with` block."""
    return Terminal([*TOP, str(job.run_dir)], lines, columns, env)
