"""`ftlaunch --detach`: the job outlives the terminal, and what is wrong is said before the command returns."""

from __future__ import annotations

import os
import pty
import signal
import sys
from pathlib import Path

import pytest
from tests.support.ctl import BEATS, ftctl
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.system.ports import free_port

pytestmark = pytest.mark.long

LONG = ("1000000", "0.01")
# ftlaunch, to whose group a terminal sends Ctrl-C at the fork of the process that is detached
INTERRUPTED = """
import functools, os, signal
from ftlaunch.cli.launch import main

os.register_at_fork({when}=functools.partial(os.killpg, 0, signal.SIGINT))
main()
"""


def detached(job: FtJob, *options: str, steps: tuple[str, str] = LONG, env: dict[str, str] | None = None) -> int:
    """Start a job detached; the exit code of the command."""
    job.start("--detach", *options, script=BEATS, args=steps, env=env)
    return job.wait()


def ended(job: FtJob, name: str) -> dict[str, object]:
    return wait_for(lambda: job.events(name), f"event {name}")[0]


def test_the_command_prints_the_id_and_returns_when_the_job_has_begun(job: FtJob) -> None:
    assert detached(job) == 0, job.stderr
    assert job.stdout == f"{job.job_id}\n"
    pid = job.events("job_started")[0]["pid"]  # it is there: nothing is waited for
    assert f"is detached (pid {pid}): `ftctl attach {job.job_id}` shows" in job.stderr
    assert job.stderr.count("\n") == 1
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4] == "0"  # no terminal
    opened = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.name in ("0", "1", "2")}
    log = job.run_dir / "terminal.log"
    assert opened == {os.devnull, str(log)}
    assert log.stat().st_mode & 0o077 == 0
    assert ftctl("stop", job.job_id, cwd=job.home)[0] == 0
    assert "ftlaunch: stopping: ftctl stop" in log.read_text()
    job.assert_clean()


def test_a_terminal_that_goes_away_takes_nothing_along(job: FtJob) -> None:
    """A shell on a terminal that hangs up. Tried: without a session of its own SIGHUP stops the job."""
    command = [sys.executable, "-m", "ftlaunch", "--detach", "--no-warm", "--job-id", job.job_id, "--run-dir",
               str(job.run_dir), str(BEATS), *LONG]  # fmt: skip
    name, _, value = job.tag.partition("=")
    shell, terminal = pty.fork()
    if not shell:
        os.chdir(job.home)
        os.environ[name] = value
        os.execvp("bash", ["bash", "-ic", 'shopt -s huponexit; "$@"; exec sleep 1000', "bash", *command])
    try:
        pid = int(ended(job, "job_started")["pid"])  # type: ignore[call-overload]
        wait_for((job.run_dir / "terminal.log").exists, "the name of the terminal's output")
    finally:
        os.close(terminal)  # SIGHUP to the shell, and to what it runs
        _, status = os.waitpid(shell, 0)
    assert os.WTERMSIG(status) == signal.SIGHUP
    step = wait_for(lambda: (told := job.status()) and told["ranks"] and told["ranks"][0]["step"], "steps")
    wait_for(lambda: (told := job.status()) and told["ranks"][0]["step"] > step, "more steps")
    assert not job.events("stop_requested")
    os.kill(pid, signal.SIGTERM)
    ended(job, "job_stopped")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--keep", "0"], "ftlaunch: cannot use `--keep 0`: it must be a whole number, 1 or more\n"),
        (["--run-dir", "/proc/no"], "ftlaunch: cannot start: /proc/no: No such file or directory\n"),
    ],
)
def test_what_cannot_be_is_said_before_the_command_returns(job: FtJob, options: list[str], says: str) -> None:
    assert detached(job, *options) == 2
    assert job.stdout == ""
    assert job.stderr == says
    assert [path.name for path in job.home.iterdir() if path.name.startswith((".ft", "run"))] == []


def test_a_run_dir_that_is_taken_is_refused_and_its_output_is_not_touched(job: FtJob) -> None:
    assert detached(job) == 0, job.stderr
    log = job.run_dir / "terminal.log"
    assert detached(job) == 2
    assert job.stdout == ""
    assert "is in use by a running supervisor (pid " in job.stderr
    assert "is in use" not in log.read_text()
    assert sorted(path.name for path in job.run_dir.glob("*terminal*")) == ["terminal.log"]
    assert ftctl("stop", str(job.run_dir), cwd=job.home)[0] == 0


def test_each_run_has_its_own_output(job: FtJob) -> None:
    for number in range(3):
        assert detached(job, steps=("3", "0")) == 0, job.stderr
        wait_for(lambda count=number + 1: len(job.events("job_finished")) == count, "its end")
        wait_for(lambda: not job.memory.exists(), "the end of the supervisor")
    logs = sorted(job.run_dir.glob("terminal.log*"))
    assert [log.name for log in logs] == ["terminal.log", "terminal.log.1", "terminal.log.2"]
    for log in logs:
        wait_for(lambda log=log: log.read_text().count("ftlaunch: done") == 1, "its last words")


def test_standard_output_that_a_shell_waits_for_is_let_go(job: FtJob) -> None:
    """`id=$(ftlaunch --detach ...)`, and what ssh waits for. Tried: with descriptors left open it lasts as the job."""
    read, write = os.pipe()
    job.start("--detach", script=BEATS, args=LONG, stdout=write, stderr=write, pass_fds=(write,))
    os.close(write)
    with open(read, "rb") as output:
        assert output.read().startswith(f"{job.job_id}\n".encode())
    assert job.wait() == 0
    assert ftctl("stop", str(job.run_dir), cwd=job.home)[0] == 0


def test_two_agents_of_a_job_of_two_nodes(job: FtJob) -> None:
    script = job.home / "plain.py"
    script.write_text("print('a rank')")
    nodes = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port('127.0.0.1')}", "--no-warm")
    for _ in range(2):
        job.start("--detach", *nodes, script=script, args=())
        assert job.wait() == 0, job.stderr
        assert job.stdout == f"{job.job_id}\n"
    assert ended(job, "job_finished")["code"] == 0
    logs = list(job.run_dir.glob("terminal.*.log"))
    assert len(logs) == 2
    wait_for(lambda: not carriers(job.tag), "the end of both agents")
    assert sum("job " in log.read_text() and "2 nodes" in log.read_text() for log in logs) == 1  # the head's


def test_ctrl_c_before_the_job_has_begun_leaves_nothing(job: FtJob) -> None:
    """While the machine is checked. Tried: without the signal passed on the check goes on, and then the job."""
    process = job.start("--detach", "--check", script=BEATS, args=LONG)
    wait_for(lambda: list(job.home.glob(".ftlaunch-terminal-*")), "the output without a name")
    wait_for(lambda: len(carriers(job.tag)) > 1, "the process that is detached")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 143
    assert job.stderr.endswith("ftlaunch: stopped by Ctrl-C\n")
    assert job.stdout == ""
    wait_for(lambda: not carriers(job.tag), "the end of all processes")
    assert not job.run_dir.exists()
    assert list(job.home.glob(".ftlaunch*")) == []


@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_ctrl_c_while_the_process_is_made_leaves_nothing(job: FtJob, when: str) -> None:
    """Tried: with Ctrl-C let through around the fork the job begins, or the output without a name stays."""
    (job.home / "interrupted.py").write_text(INTERRUPTED.format(when=when))
    job.module = "interrupted"
    job.start("--detach", script=BEATS, args=LONG, start_new_session=True)
    assert job.wait() == 143
    assert job.stderr.endswith("ftlaunch: stopped by Ctrl-C\n")
    assert job.stdout == ""
    wait_for(lambda: not carriers(job.tag), "the end of all processes")
    assert not job.run_dir.exists()
    assert list(job.home.glob(".ftlaunch*")) == []


@pytest.mark.slow
def test_the_job_goes_on_where_the_command_that_waits_is_killed(job: FtJob) -> None:
    """As an out-of-memory kill does, while the machine is checked. Tried: the job took it for a bug of its own."""
    process = job.start("--detach", "--check", script=BEATS, args=LONG)
    child = wait_for(lambda: set(carriers(job.tag)) - {process.pid}, "the process that is detached").pop()
    process.kill()
    process.wait()
    assert not job.run_dir.exists()
    wait_for(lambda: (told := job.status()) and told["ranks"] and told["ranks"][0]["step"], "steps")
    assert job.events("job_started")[0]["pid"] == child
    assert ftctl("stop", job.job_id, cwd=job.home)[0] == 0
    assert "ftlaunch: stopping: ftctl stop" in (job.run_dir / "terminal.log").read_text()
    assert list(job.home.glob(".ftlaunch*")) == []
    job.assert_clean()
