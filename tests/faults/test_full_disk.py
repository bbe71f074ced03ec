"""The disk of the logs is full: printing ends no rank, and a job that needs room waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.disks import needs_root, tmpfs
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

pytestmark = needs_root

_PRINTS = """
import sys, time
from pathlib import Path
import ftlaunch_hooks
print("begun")
print("x" * 100, file=sys.stderr)
Path("ready").touch()
while not Path("full").exists():
    time.sleep(0.01)
for number in range(3000):
    print(number, "y" * 100)
    sys.stderr.write("z" * 100)
Path("printed").touch()
while not Path("room").exists():
    time.sleep(0.01)
print("going on")
"""
_WRITES = """
import os, sys, time
from pathlib import Path
import ftlaunch_hooks
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if attempt == "0":
    Path("ready").touch()
    while not Path("full").exists():
        time.sleep(0.01)
(Path(sys.argv[1]) / "result").write_bytes(bytes(2 << 20))
"""


@pytest.fixture
def disk(job: FtJob, tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", "8m") as place:
        job.run_dir = place / "run"
        yield place
        job.dispose()


def fill(disk: Path, job: FtJob) -> Path:
    """Use up the disk once the rank is ready."""
    wait_for((job.home / "ready").exists, "the rank")
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    (job.home / "full").touch()
    return filler


@pytest.mark.long
@pytest.mark.parametrize("how", ["--warm", "--no-warm"])
def test_a_rank_that_prints_lives_on(job: FtJob, disk: Path, how: str) -> None:
    """Taken out (`lossy_output.install`): OSError in the line that prints, until no restart is left."""
    script = job.home / "prints.py"
    script.write_text(_PRINTS)
    job.start(how, script=script, args=(), ranks=1)
    filler = fill(disk, job)
    wait_for((job.home / "printed").exists, "the rank to print all")
    filler.unlink()
    (job.home / "room").touch()
    assert job.wait() == 0, job.stderr
    assert job.events("incident") == []
    log = job.log(0, 0)
    assert log.startswith("begun\n")
    assert " bytes of output were lost: No space left on device]\n" in log
    assert log.endswith("going on\n")


@pytest.mark.long
def test_a_job_that_needs_room_waits_for_it(job: FtJob, disk: Path) -> None:
    """Taken out (`_backoff_over` posts at once): the restarts are used up while the disk is full."""
    script = job.home / "writes.py"
    script.write_text(_WRITES)
    job.start("--no-warm", "--backoff-first", "0.1s", "--max-restarts", "1", script=script, args=(str(disk),), ranks=1)
    filler = fill(disk, job)
    wait_for(lambda: "the next attempt waits for room" in job.stderr, "the wait")
    filler.unlink()
    (disk / "result").unlink(missing_ok=True)
    assert job.wait() == 0, job.stderr
    (incident,) = job.events("incident")
    assert incident["kind"] == "disk"
    assert "No space left on device" in incident["sentence"]
