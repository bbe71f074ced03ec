"""Jobs as services of systemd: the unit, and what a job tells its manager."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.ctl import BEATS, ftctl
from tests.support.harness import FtJob

ANALYZE = shutil.which("systemd-analyze")


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(tmp_path / "notify"))
        opened.settimeout(60)
        yield opened


def told_until(notify: socket.socket, word: str, most: int = 1000) -> list[str]:
    """What a job tells, up to a word."""
    found: list[str] = []
    while word not in found:
        found.append(notify.recv(4096).decode())
        assert len(found) < most, found[-20:]
    return found


@pytest.mark.parametrize("user", [[], ["--user", "root"]])
def test_systemd_takes_the_unit(user: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "a b%h $HOME \"q'"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "job.yaml").write_text("script: train.py\njob_id: night\ngrace: 45s\nrun_dir: runs/night\n")
    code, unit, err = ftctl("systemd", "job.yaml", *user, cwd=folder)
    assert (code, err) == (0, "")
    words = [
        line for line in unit.splitlines() if line.startswith(("TimeoutStop", "Watchdog", "Restart", "User", "Wanted"))
    ]
    assert words == [
        *(["User=root"] if user else []), "WatchdogSec=90", "Restart=on-failure", "RestartSec=10",
        "RestartForceExitStatus=75 143", "RestartPreventExitStatus=1 2", "TimeoutStopSec=645",
        "WantedBy=multi-user.target" if user else "WantedBy=default.target",
    ]  # fmt: skip
    if ANALYZE is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    path = tmp_path / "ftlaunch-night.service"
    path.write_text(unit)
    command = [ANALYZE, "verify", "--man=no", *([] if user else ["--user"]), str(path)]
    runtime = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=runtime)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "ftlaunch-night" in line]) == (0, [])


@pytest.mark.parametrize(("spec", "says"), [("script: [1]", "`script` is"), ("", "cannot ")])
def test_a_spec_that_cannot_be_has_no_unit(spec: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(spec)
    code, out, err = ftctl("systemd", "job.yaml", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert says in err


def test_a_job_tells_its_manager(job: FtJob, notify: socket.socket) -> None:
    """Ready once ranks run, alive from its loop, stopping once it is asked to; and no rank can speak for it."""
    env = {"NOTIFY_SOCKET": notify.getsockname(), "WATCHDOG_USEC": "300000"}
    job.start(script=BEATS, args=("1000000", "0.005"), env=env)
    found = told_until(notify, "READY=1")
    assert any(word.startswith("STATUS=job test-") for word in found)
    assert "WATCHDOG=1" in [*found, *told_until(notify, "WATCHDOG=1")]
    assert "STOPPING=1" not in found
    job.wait_step(1)
    for pid in job.pids():
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
    job.supervisor.send_signal(signal.SIGTERM)
    assert "STATUS=stopping: SIGTERM to the supervisor" in told_until(notify, "STOPPING=1")
    assert job.wait() == 143
