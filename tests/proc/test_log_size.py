"""A job whose logs are kept short."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.ctl import ftctl
from tests.support.harness import FtJob

from ftlaunch.ranks.log_holes import why_not

pytestmark = pytest.mark.long

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


APART = """
import os, sys
life = os.environ.get("LIFE") or os.environ["TORCHELASTIC_RESTART_COUNT"]
print("\\n".join(f"line {number} {'x' * 90}" for number in range(60_000)))
if life != sys.argv[1]:
    raise (ValueError, TypeError)[int(life)](f"what life {life} dies of")
"""


def kept(job: FtJob, *lives: str) -> None:
    """What the rank died of in each of its lives stands in its log, whole, and the log is short all the same."""
    log = job.run_dir / "logs/attempt_0/rank_0.log"
    text = log.read_bytes()
    for life in lives:
        assert text.count(f"Error: what life {life} dies of\n".encode()) == 1
        assert b"Traceback (most recent call last)" in text.split(f"Error: what life {life}".encode())[0][-2000:]
    assert len(text) > 5_000_000 * (len(lives) + 1)
    assert log.stat().st_blocks * 512 < 4_000_000 + 200_000 * len(lives)
    out = ftctl("logs", str(job.run_dir), "--since", "1h", cwd=job.home)[1]
    assert [out.count(f"Error: what life {life} dies of\n") for life in lives] == [1] * len(lives)
    assert "\0" not in out


def test_what_each_life_of_a_rank_died_of_is_left(job: FtJob) -> None:
    """restart_scope: rank: all lives write into one log. Tried: without their ends all but the last one are gone."""
    if why_not(job.home):
        pytest.skip(why_not(job.home))
    script = job.home / "apart.py"
    script.write_text(APART)
    options = ("--log-max-size", "1MB", "--restart-scope", "rank", "--backoff-first", "0.1s")
    job.start(*options, script=script, args=("2",), ranks=1)
    assert job.wait() == 0, job.stderr
    assert len(job.events("rank_restarted")) == 2
    kept(job, "0", "1")


def test_what_the_ranks_of_earlier_runs_died_of_is_left(job: FtJob) -> None:
    """A job that is started again writes into the log of its first attempt.

    Tried: without the notes of the runs before it what the first run died of is gone.
    """
    if why_not(job.home):
        pytest.skip(why_not(job.home))
    script = job.home / "again.py"
    script.write_text(APART)
    for life in ("0", "1", "2"):
        options = ("--log-max-size", "1MB", "--max-restarts", "0")
        job.start(*options, script=script, args=("2",), ranks=1, env={"LIFE": life})
        assert job.wait() == int(life != "2"), job.stderr
    kept(job, "0", "1")
