"""A journal line of a gigabyte, a FIFO where a file is awaited, a limit of descriptors that cannot be raised."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.ctl import started
from tests.support.harness import FtJob

_ADDRESS_SPACE = 600 << 20  # bytes that ftctl may take; it needs 100 MB of them
_QUICK = "import os; print('rank', os.environ['RANK'])"
_WAITS = "import os, sys, time; os.mkfifo(sys.argv[1]); time.sleep(0.1); os._exit(1)"


def little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))


@pytest.fixture
def run_dir_with_a_long_line(tmp_path: Path) -> Path:
    """A run dir whose journal has a line of a gigabyte, and whose log has one of 64 MiB."""
    made = tmp_path / "run"
    (made / "logs" / "attempt_0").mkdir(parents=True)

    def line(number: int, **event: object) -> bytes:
        stamp = f"2031-01-02T03:04:{number:02d}.000Z"
        return json.dumps({"t": stamp, "mono": number, "attempt": 0, **event}).encode() + b"\n"

    with (made / "events.jsonl").open("wb") as file:
        file.write(line(0, **started(ranks=1, command=["x.py"])))
        file.write(line(1, event="attempt_started", pids=None, port=1))
        file.seek(1 << 30, os.SEEK_CUR)
        file.write(b"\n" + line(9, event="job_finished", code=0))
    with (made / "logs" / "attempt_0" / "rank_0.log").open("wb") as file:
        file.write(b"first\n")
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b"\nlast\n")
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("report",), 0, "done (exit code 0)"),
        (("status",), 1, "done (exit code 0)"),
        (("logs",), 0, "(cut here: the log has the whole line)\nlast"),
        (("report", "--html"), 0, "the page is"),
        (("checkpoints",), 0, "there is no checkpoint"),
    ],
)
def test_a_line_of_a_gigabyte_is_read_in_little_memory(
    run_dir_with_a_long_line: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    """Taken out (lines of any length were joined): MemoryError in the exporter, the dashboard and `ftctl logs`."""
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", words[0], str(run_dir_with_a_long_line), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=little_memory, check=False)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr[-2000:]


@pytest.mark.parametrize("name", ["events.jsonl", "logs/attempt_1/rank_0.log", "checkpoints/seed.json"])
def test_a_job_does_not_start_where_a_fifo_is_in_the_place_of_a_file(job: FtJob, name: str) -> None:
    """Taken out: the start waited for ever for somebody who reads the FIFO."""
    path = job.run_dir / name
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    script = job.home / "quick.py"
    script.write_text(_QUICK)
    job.start("--no-warm", script=script, args=(), ranks=1)
    assert job.wait() == 2
    assert f"cannot start: {path} is no regular file (a FIFO); remove it, or name another place" in job.stderr
    assert not job.memory.exists()


def test_a_fifo_that_comes_later_fails_an_attempt_and_holds_up_nobody(job: FtJob) -> None:
    """Taken out: the supervisor stood in open() at the first restart, and could not be stopped."""
    script = job.home / "fifo.py"
    script.write_text(_WAITS)
    log = job.run_dir / "logs" / "attempt_1" / "rank_0.log"
    log.parent.mkdir(parents=True)
    job.start("--no-warm", "--max-restarts", "1", script=script, args=(str(log),), ranks=1)
    assert job.wait() == 1
    assert f"rank 0 could not be started: {log}: it is no regular file (a FIFO)" in job.stderr
    assert len(job.events("incident")) == 2


def few() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))


def test_a_limit_on_descriptors_that_cannot_be_raised_is_told_of(job: FtJob) -> None:
    script = job.home / "quick.py"
    script.write_text(_QUICK)
    job.start("--no-warm", script=script, args=(), ranks=2, preexec_fn=few)
    assert job.wait() == 0, job.stderr
    assert (
        "only 48 descriptors may be open here, and the limit cannot be raised (`ulimit -Hn`): this job wants 72;"
        in job.stderr
    )
