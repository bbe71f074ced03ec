"""The supervisor and the saver are killed too."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.harness import JOBS, FtJob
from tests.support.leftovers import assert_ended, carriers
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.pages.page import NONE, Page, page_path
from ftlaunch_contract.protocol import SLOTS

BEATS = JOBS / "beats.py"
SLOW = ("--steps", "60", "--step-time", "0.03")


def args(job: FtJob, *more: str) -> tuple[str, ...]:
    return ("--out", str(job.out), *more)


def test_killed_supervisor_leaves_no_rank_and_loses_no_step(job: FtJob) -> None:
    job.start(args=args(job, *SLOW))
    job.wait_step(10)
    pids = job.pids()
    job.supervisor.kill()
    assert_ended(pids)
    wait_for(lambda: not carriers(job.tag), "the end of the saver")
    made = len(job.losses())
    assert made < 60, "no rank has trained on"
    job.start(args=args(job, *SLOW))
    assert job.wait() == 0, job.stderr
    resumed = job.events("resumed")[1]
    assert resumed["source"] == "memory"
    assert made - 1 <= resumed["step"] <= made, "at most the step in the making is made again"
    assert len(job.losses()) == 60
    job.assert_clean()


def test_killed_supervisor_takes_grandchildren_along(job: FtJob) -> None:
    script = job.home / "family.py"
    script.write_text(
        "import subprocess, sys, time, pathlib\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        "pathlib.Path('grandchild').write_text(str(p.pid))\ntime.sleep(1000)\n"
    )
    job.start(script=script, args=(), ranks=1)
    path = job.home / "grandchild"
    pid = int(wait_for(lambda: path.exists() and path.read_text(), "the grandchild"))
    job.supervisor.kill()
    assert_ended([pid])
    wait_for(lambda: not carriers(job.tag), "the end of everything")


def test_killed_with_its_saver_it_leaves_no_rank_either(job: FtJob) -> None:
    """A rank without hooks, and nobody left to sweep: the kernel does it (PR_SET_PDEATHSIG)."""
    script = job.home / "sleep.py"
    script.write_text("import time\ntime.sleep(1000)\n")
    job.start(script=script, args=(), ranks=2)
    pids = job.pids()
    saver_of(job).kill()
    job.supervisor.kill()
    assert_ended(pids)
    wait_for(lambda: not carriers(job.tag), "the end of everything")


@pytest.mark.long
def test_second_supervisor_on_a_live_run_dir_is_refused(job: FtJob) -> None:
    job.start(script=BEATS, args=("1000000", "0.01"))
    job.wait_step(3)
    first = job.supervisor
    journal = len(job.events("job_started"))
    job.start(script=BEATS, args=("1000000", "0.01"))
    assert job.wait() == 2
    assert f"in use by a running supervisor (pid {first.pid})" in job.stderr
    assert len(job.stderr.splitlines()) == 1
    assert len(job.events("job_started")) == journal
    assert first.poll() is None
    first.terminate()
    assert first.wait(60) == 143
    job.assert_clean()


@pytest.mark.long
def test_nohup_survives_sighup(job: FtJob) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    job.start(script=BEATS, args=("100", "0.02"), preexec_fn=ignore)
    job.wait_step(5)
    os.kill(job.supervisor.pid, signal.SIGHUP)
    assert job.wait() == 0, job.stderr
    assert job.events("stop_requested") == []
    job.assert_clean()


def saver_of(job: FtJob) -> psutil.Process:
    children = psutil.Process(job.supervisor.pid).children()
    return next(child for child in children if "ftlaunch.checkpoints.saver" in " ".join(child.cmdline()))


@pytest.mark.long
def test_saver_killed_in_mid_save(job: FtJob) -> None:
    """It is killed while the shards are half written; its successor saves the same step, from memory."""
    args = ("--out", str(job.out), "--steps", "20", "--width", "2500")
    job.start("--storage-interval", "10", args=args, ranks=1)
    job.wait_event("attempt_started")
    saver = saver_of(job)
    incomplete = job.run_dir / "checkpoints" / "iteration_0000010.incomplete"
    wait_for(incomplete.exists, "the save to begin")
    saver.suspend()
    assert incomplete.exists(), "it was caught in the middle"
    assert job.events("checkpoint_committed") == []
    saver.kill()
    assert job.wait_event("saver_died")["step"] == 10
    assert job.wait() == 0, job.stderr
    assert job.events("checkpoint_committed")[0]["step"] == 10
    for _, directory in layout.list_iterations(job.run_dir / "checkpoints"):
        verify.verify(directory)
    assert not incomplete.exists()
    job.assert_clean()


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment like this one, whose Python can be taken away."""
    home = tmp_path / "venv"
    python = home / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", home)
    (home / "lib").symlink_to(Path(sys.prefix) / "lib")
    monkeypatch.setattr(sys, "executable", str(python))
    return python


@pytest.mark.slow
@pytest.mark.parametrize(
    "told", [pytest.param(False, id="to its end", marks=pytest.mark.slow), pytest.param(True, id="until told to stop")]
)
def test_a_job_goes_on_while_no_saver_can_be_started(job: FtJob, python: Path, told: bool) -> None:
    """As where no process more is allowed. What is due meanwhile is saved once there is one again."""
    place = python.readlink()
    args = ("--out", str(job.out), "--steps", "400" if told else "40", "--step-time", "0.05")
    job.start("--verify-resume", "off", "--storage-interval", "10", args=args, ranks=1)
    job.wait_step(3)
    python.unlink()
    saver_of(job).kill()
    assert job.wait_event("saver_missing")["why"] == "No such file or directory"
    before = job.events("checkpoint_committed")
    job.wait_step(25)
    if told:
        job.supervisor.terminate()
        job.wait_event("stop_requested")
    assert job.events("checkpoint_committed") == before
    assert job.events("saver_died") == []
    python.symlink_to(place)
    assert job.wait() == (75 if told else 0), job.stderr
    assert len(job.events("attempt_started")) == len(job.events("saver_missing")) == len(job.events("saver_died")) == 1
    saved = [directory for _, directory in layout.list_iterations(job.run_dir / "checkpoints")]
    assert saved
    assert layout.step_of(saved[0]) == len(job.losses(0))
    for directory in saved:
        verify.verify(directory)
    job.assert_clean()


@pytest.mark.slow
def test_the_end_does_not_wait_for_ever_for_a_saver(job: FtJob, python: Path) -> None:
    """What could not be saved stays in memory, and the next start takes it up."""
    place = python.readlink()
    args = ("--out", str(job.out), "--steps", "400", "--step-time", "0.05")
    job.start("--verify-resume", "off", "--storage-interval", "off", "--grace", "2s", args=args, ranks=1)
    job.wait_step(3)
    python.unlink()
    saver_of(job).kill()
    job.wait_event("saver_missing")
    job.supervisor.terminate()
    assert job.wait() == 1
    assert "no saver can be started: No such file or directory" in job.stderr
    reached = len(job.losses(0))
    python.symlink_to(place)
    job.start("--storage-interval", "off", args=args, ranks=1)
    job.wait_step(reached + 3)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    assert job.events("resumed")[-1]["source"] == "memory"
    assert job.events("resumed")[-1]["step"] == reached
    job.assert_clean()


@pytest.mark.long
@pytest.mark.skipif(
    "FT_TEST_PLAIN" in os.environ, reason="FT_TEST_PLAIN has ranks need the Python that is taken away: unset it"
)
def test_a_restart_from_storage_waits_for_a_saver(job: FtJob, python: Path) -> None:
    """It verifies the checkpoint: until then the new ranks are not told where to begin."""
    place = python.readlink()
    args = ("--out", str(job.out), "--steps", "400", "--step-time", "0.05")
    job.start("--storage-interval", "10", "--memory-interval", "0", args=args)
    job.wait_event("checkpoint_committed")
    python.unlink()
    saver_of(job).kill()
    job.wait_event("saver_missing")
    page = Page(page_path(job.memory, 1))
    job.wait_step(page.persist_at + 2)  # without a saver no snapshot is after that one
    for slot in range(SLOTS):
        page.set_slot(slot, NONE)
    page.close()
    os.kill(job.pids()[1], signal.SIGKILL)
    job.wait_event("attempt_started", 2)
    assert job.events("saver_died") == []
    python.symlink_to(place)
    assert job.wait_event("resumed", 2)["source"] == "storage"
    assert job.events("saver_died")
    reached = len(job.losses(0))
    job.wait_step(reached + 5)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    job.assert_clean()


@pytest.fixture
def group(job: FtJob) -> Iterator[Path]:
    """A control group of its own, where we may make one and limit its processes."""
    base = Path("/sys/fs/cgroup")
    group = (base / "pids" if (base / "pids").is_dir() else base) / job.job_id
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(
            f"no control group can be made in /sys/fs/cgroup: {error}; run as root, where it is mounted for writing"
        )
    try:
        if not (group / "pids.max").exists():
            pytest.skip("the control group counts no processes: have its parent delegate the controller `pids`")
        yield group
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the end of all in the group")
        group.rmdir()


@pytest.mark.parametrize("most", [1, 2, 3], ids=["not a thread", "no thread for files", "not the saver"])
def test_where_no_more_processes_are_allowed(job: FtJob, group: Path, most: int) -> None:
    """A limit of the container, say, that is too low for any job."""
    (group / "pids.max").write_text(str(most))
    enter = (group / "cgroup.procs").open("w")
    job.start(args=args(job), preexec_fn=lambda: enter.write(str(os.getpid())) and enter.flush())
    enter.close()
    assert job.wait() == 2, job.stderr
    assert "ftlaunch: cannot start: " in job.stderr
    assert "pids of the container" in job.stderr
    assert "bug" not in job.stderr
    if most > 2:
        assert "pids of the container" in job.events("job_failed")[0]["sentence"]
    job.assert_clean()


def test_port_taken_costs_no_restart(job: FtJob) -> None:
    """The rank that hosts the store finds its port taken; another is tried, outside the budget."""
    script = job.home / "binder.py"
    script.write_text(
        "import os, socket, time\n"
        "s = socket.socket(); port = int(os.environ['MASTER_PORT'])\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    t = socket.socket(); t.bind(('127.0.0.1', port)); t.listen()\n"
        "    open('fired', 'w').close()\n"
        "s.bind(('127.0.0.1', port))\nprint('bound', port)\n"
    )
    job.start("--max-restarts", "0", script=script, args=(), ranks=1)
    assert job.wait() == 0, job.stderr
    assert Path(job.home / "fired").exists()
    (incident,) = job.events("incident")
    assert incident["kind"] == "port"
    ports = {event["port"] for event in job.events("attempt_started")}
    assert len(ports) == 2
    assert job.events("job_finished")[0]["restarts"] == 0
    job.assert_clean()
