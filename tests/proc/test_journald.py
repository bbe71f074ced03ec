"""What a job says where systemd's journal reads it: lines with priorities, which no rank can forge."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.harness import FtJob

JOURNALD = Path("/lib/systemd/systemd-journald")
LINE_MAX = 48 << 10  # bytes, after which journald cuts a line
SCRIPT = f"""
import os, sys
print("<0>forged, at the beginning of a line")
print("end\\0<0>forged, behind a zero byte")
print("y" * ({LINE_MAX} - len("[0] ")) + "<0>forged, where journald cuts the line")
sys.stdout.flush()
if os.environ["FTLAUNCH_ATTEMPT"] == "0":
    raise ValueError("<0>forged, by what it dies of")
"""
JOURNAL = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/log/journal
{journald} &
journald=$!
until [ -S /run/systemd/journal/stdout ]; do kill -0 $journald; sleep 0.05; done
systemd-cat -t ftlaunch bash -c 'JOURNAL_STREAM=$(stat -Lc %d:%i /proc/$$/fd/2) exec "$@"' bash "$@"  # as systemd does
journalctl --sync
journalctl -o json --all --no-pager -t ftlaunch > {out}
kill $journald
"""


def talks(job: FtJob) -> Path:
    script = job.home / "talks.py"
    script.write_text(SCRIPT)
    return script


@pytest.mark.long
@pytest.mark.parametrize("connected", [True, False])
def test_lines_have_priorities_where_standard_error_is_the_journal(connected: bool, job: FtJob) -> None:
    """JOURNAL_STREAM names standard error; or another stream, as where it was inherited."""
    err = job.home / "to_journal"
    with err.open("w") as file:
        found = os.fstat(file.fileno())
        stream = f"{found.st_dev}:{found.st_ino + (not connected)}"
        job.start(script=talks(job), args=(), ranks=1, stderr=file, env={"JOURNAL_STREAM": stream})
    assert job.wait() == 0, err.read_text()
    lines = err.read_text().splitlines()
    assert all(bool(re.match("<[346]>ftlaunch: ", line)) == connected for line in lines)
    told = [line[:3] for line in lines if "failed with ValueError: <0>forged" in line or "done;" in line]
    assert told == (["<3>", "<6>"] if connected else ["ftl", "ftl"])


@pytest.mark.long
def test_a_real_journal_knows_failures_and_believes_no_rank(job: FtJob) -> None:
    """systemd-journald in a mount namespace of its own.

    Tried: without `harmless` the zero byte, and with lines of 64 KiB the cut, make lines of priority 0. What stands
    behind the cut is not shown at all.
    """
    if os.geteuid() or not JOURNALD.exists() or not (shutil.which("unshare") and shutil.which("systemd-cat")):
        pytest.skip("systemd-journald (Debian: systemd) needs to be there, and to be started by root")
    out = job.home / "journal.json"
    command = [sys.executable, "-m", "ftlaunch", "--no-warm", "--no-report-page", "--nproc-per-node", "1", "--job-id",
               job.job_id, "--run-dir", str(job.run_dir), str(talks(job))]  # fmt: skip
    script = JOURNAL.format(journald=JOURNALD, out=out)
    name, _, value = job.tag.partition("=")
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "bash", "-c", script, "bash", *command],
        cwd=job.home, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, name: value},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.read_text().splitlines()]
    told = [(int(line["PRIORITY"]), str(line["MESSAGE"])) for line in lines]
    forged = [(priority, message) for priority, message in told if "forged" in message and message[0] != "f"]
    assert len(forged) == 2 * 2 + 2, told  # of two attempts, and the traceback of the first
    assert {priority for priority, _ in forged} == {6}
    [failure] = [message for priority, message in told if priority < 6]
    assert "rank 0 failed with ValueError: <0>forged, by what it dies of" in failure
