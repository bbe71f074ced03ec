"""The supervisor and the saver are killed too."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
from harness import FtJob, alive, carriers, wait_for

from ftlaunch_hooks import checks, layout

SLOW = ("--steps", "60", "--step-time", "0.03")


def args(job: FtJob, *more: str) -> tuple[str, ...]:
    return ("--out", str(job.out), *more)


def test_killed_supervisor_leaves_no_rank_and_loses_no_step(job: FtJob) -> None:
    job.start(args=args(job, *SLOW))
    job.wait_step(10)
    pids = job.pids()
    job.supervisor.kill()
    began = time.monotonic()
    wait_for(lambda: not any(map(alive, pids)), "the end of the ranks", 5.0)
    assert time.monotonic() - began <= 2.0
    wait_for(lambda: not carriers(job.tag), "the end of the saver", 5.0)
    made = len(job.losses())
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
    wait_for(lambda: not alive(pid), "the end of the grandchild", 5.0)
    wait_for(lambda: not carriers(job.tag), "the end of everything", 5.0)


def test_killed_with_its_saver_it_leaves_no_rank_either(job: FtJob) -> None:
    """A rank without hooks, and nobody left to sweep: the kernel does it (PR_SET_PDEATHSIG)."""
    script = job.home / "sleep.py"
    script.write_text("import time\ntime.sleep(1000)\n")
    job.start(script=script, args=(), ranks=2)
    pids = job.pids()
    saver_of(job).kill()
    job.supervisor.kill()
    wait_for(lambda: not any(map(alive, pids)), "the end of the ranks", 5.0)
    wait_for(lambda: not carriers(job.tag), "the end of everything", 5.0)


def test_second_supervisor_on_a_live_run_dir_is_refused(job: FtJob) -> None:
    job.start(args=args(job, *SLOW))
    job.wait_step(3)
    first = job.supervisor
    journal = len(job.events("job_started"))
    job.start(args=args(job, *SLOW))
    assert job.wait() == 2
    assert f"in use by a running supervisor (pid {first.pid})" in job.stderr
    assert len(job.stderr.splitlines()) == 1
    assert len(job.events("job_started")) == journal
    assert first.poll() is None
    first.terminate()
    assert first.wait(60) == 75
    job.assert_clean()


def test_nohup_survives_sighup(job: FtJob) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    job.start(args=args(job, *SLOW), preexec_fn=ignore)
    job.wait_step(5)
    os.kill(job.supervisor.pid, signal.SIGHUP)
    assert job.wait() == 0, job.stderr
    assert job.events("stop_requested") == []
    job.assert_clean()


def saver_of(job: FtJob) -> psutil.Process:
    children = psutil.Process(job.supervisor.pid).children()
    return next(child for child in children if "ftlaunch.saver" in " ".join(child.cmdline()))


def test_saver_killed_in_mid_save(job: FtJob) -> None:
    """It is killed while the shards are half written; its successor saves the same step, from memory."""
    args = ("--out", str(job.out), "--steps", "20", "--width", "2500")
    job.start("--storage-interval", "10", args=args)
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
        checks.verify(directory)
    assert not incomplete.exists()
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
