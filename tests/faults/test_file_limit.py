"""A limit on the size of files (ulimit -f): printing beyond it ends no rank, and a line says what the limit means."""

from __future__ import annotations

import resource

import pytest
from tests.support.harness import FtJob

_LIMIT = 200_000
_PRINTS = """
from pathlib import Path
import ftlaunch_hooks
for number in range(4000):
    print(number, "y" * 100)
Path("printed").touch()
"""


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LIMIT, _LIMIT))


@pytest.mark.parametrize("how", ["--warm", pytest.param("--no-warm", marks=pytest.mark.long)])
def test_a_rank_that_prints_more_lives_on(job: FtJob, how: str) -> None:
    """Taken out (EFBIG in `lossy_output`): OSError in the line that prints, until no restart is left."""
    script = job.home / "prints.py"
    script.write_text(_PRINTS)
    job.start(how, script=script, args=(), ranks=1, preexec_fn=limited)
    assert job.wait() == 0, job.stderr
    assert job.events("incident") == []
    assert (job.home / "printed").exists()
    assert len(job.log(0, 0)) == _LIMIT
    assert "no file may be longer than 195.3 KiB here (`ulimit -f`): what a rank prints beyond that" in job.stderr
