"""A job whose logs are kept short."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.ctl import ftctl
from tests.support.harness import FtJob

from ftlaunch.ranks.logs.holes import why_not

SCRIPT = """
import os
if os.environ["FTLAUNCH_ATTEMPT"] == "0":
    for number in range(60_000):
        print("line", number, "x" * 90)
    raise ValueError("what it dies of")
"""


def test_what_a_rank_died_of_is_left_and_told(job: FtJob) -> None:
    if why_not(job.home):
        pytest.skip(why_not(job.home))
    script = job.home / "talks.py"
    script.write_text(SCRIPT)
    job.start("--log-max-size", "1MB", script=script, args=(), ranks=1)
    assert job.wait() == 0, job.stderr
    assert "ValueError: what it dies of" in job.events("incident")[0]["sentence"]
    log = Path(job.run_dir, "logs/attempt_0/rank_0.log")
    assert log.stat().st_size > 5_000_000
    assert log.stat().st_blocks * 512 < 4_000_000
    out = ftctl("logs", str(job.run_dir), "--attempt", "0", cwd=job.home)[1]
    assert out.startswith("line 0 x")
    assert out.endswith("ValueError: what it dies of\n")
    assert out.count("are left out here, as log_max_size asks") == 1
    assert "\0" not in out
