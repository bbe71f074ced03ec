"""A detached job outlives the ssh session from which it was started."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import sshd
from tests.support.ctl import BEATS, ftctl
from tests.support.harness import FtJob
from tests.support.sshd import SshHosts
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long


@pytest.fixture
def hosts(job: FtJob, tmp_path: Path) -> Iterator[SshHosts]:
    yield from sshd.made(tmp_path / "ssh", ("ada",), job.tag)


def words(job: FtJob) -> str:
    """The command as it is typed on the host."""
    command = [sys.executable, "-m", "ftlaunch", "--detach", "--no-warm", "--no-report-page", "--job-id", job.job_id,
               "--run-dir", str(job.run_dir), str(BEATS), "1000000", "0.01"]  # fmt: skip
    path = os.environ.get("PYTHONPATH", "")
    return f"cd {job.home} && PYTHONPATH={shlex.quote(path)} {shlex.join(command)}"


def goes_on(job: FtJob) -> None:
    """Its ranks make steps, nobody has asked it to stop, and it stops when it is asked to."""
    step = wait_for(lambda: (told := job.status()) and told["ranks"] and told["ranks"][0]["step"], "steps")
    wait_for(lambda: (told := job.status()) and told["ranks"][0]["step"] > step, "more steps")
    assert not job.events("stop_requested")
    assert ftctl("stop", str(job.run_dir), cwd=job.home)[0] == 0
    job.assert_clean()


def test_a_command_over_ssh_returns_while_the_job_runs(job: FtJob, hosts: SshHosts) -> None:
    """Without a terminal ssh waits for whoever holds its pipes. Tried: where the job holds them ssh does not return."""
    done = subprocess.run(
        [*shlex.split(hosts.command), "ada", words(job)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{job.job_id}\n"), done.stderr
    goes_on(job)


@pytest.mark.parametrize("end", ["logout", "cut"])
def test_a_terminal_over_ssh_that_ends_leaves_the_job_alone(end: str, job: FtJob, hosts: SshHosts) -> None:
    """By `exit`; or as the connection is lost while the shell waits. Tried: without a session of its own it is killed
    by the SIGHUP of a shell that gives one to all it has started."""
    stays = "exit" if end == "logout" else "exec sleep 1000"
    typed = f"set +m; shopt -s huponexit; {words(job)}; {stays}\n"
    with (job.home / "session").open("wb") as out:
        session = subprocess.Popen(
            [*shlex.split(hosts.command), "-tt", "ada", "bash --norc -i"],
            stdin=subprocess.PIPE, stdout=out, stderr=out,
        )  # fmt: skip
    assert session.stdin is not None
    session.stdin.write(typed.encode())
    session.stdin.flush()
    wait_for(lambda: job.events("attempt_started"), "the job")
    wait_for((job.run_dir / "terminal.log").exists, "the name of the terminal's output")
    if end == "cut":
        assert hosts.cut("ada")
    assert session.wait(60) == (0 if end == "logout" else 255)
    goes_on(job)
