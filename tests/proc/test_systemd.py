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

from ftlaunch.system.control_socket import SOCKET, ask

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
    (folder / "job.yaml").write_text(
        "script: train.py\njob_id: night\ngrace: 45s\nrun_dir: runs/night\nno_requeue_code: 93\n"
    )
    code, unit, err = ftctl("systemd", "job.yaml", *user, cwd=folder)
    assert (code, err) == (0, "")
    words = [
        line
        for line in unit.splitlines()
        if line.startswith(("TimeoutStop", "Watchdog", "Restart", "User", "Wanted", "Standard", "Syslog", "Env"))
    ]
    manager = "systemctl " if user else "systemctl --user "
    assert words == [
        *(["User=root"] if user else []), "StandardOutput=journal", "SyslogIdentifier=ftlaunch",
        f'Environment="FTLAUNCH_STOP_COMMAND={manager}stop %n"', "WatchdogSec=90", "Restart=on-failure",
        "RestartSec=10", "RestartForceExitStatus=75 143", "RestartPreventExitStatus=1 93 2", "TimeoutStopSec=645",
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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("train.py", "cannot write a unit of train.py: it is no job spec; write a job.yaml with `script: train.py`"),
        ("jb.yaml", "cannot write a unit: there is no jb.yaml; did you mean `job.yaml`?"),
        ("nothing", "cannot write a unit: there is no nothing\n"),
    ],
)
def test_what_is_no_job_spec_has_no_unit(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    code, out, err = ftctl("systemd", name, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.long
def test_a_job_that_systemd_starts_again_is_not_stopped_from_elsewhere(job: FtJob) -> None:
    """By its exit code systemd would start it again, while `ftctl stop` says "stopped". Its ranks stop it as before."""
    command = "systemctl --user stop ftlaunch-night.service"
    job.start(script=BEATS, args=("1000000", "0.005"), env={"FTLAUNCH_STOP_COMMAND": command})
    job.wait_step(1)
    code, out, err = ftctl("stop", str(job.run_dir), cwd=job.home)
    assert (code, out) == (1, "")
    says = f"systemd would start it again after it; `{command}` stops it for good, and saves its newest step, too"
    assert err == f"ftctl: cannot stop job {job.job_id} from here: {says}\n"
    assert not job.events("stop_requested")
    ask(job.memory / SOCKET, {"do": "stop", "why": "SIGTERM to rank 0"})
    assert job.wait() == 143
    job.start(script=BEATS, args=("1000000", "0.005"))
    job.wait_event("attempt_started", 2)
    assert ftctl("stop", str(job.run_dir), cwd=job.home)[0] == 0


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
