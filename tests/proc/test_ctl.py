"""The command `ftctl`, against real runs of a rank without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.ctl import ftctl, journal, start, started
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

SUPERVISOR_GONE = "its supervisor ended without a word (killed?)"


def test_the_command_is_a_process(tmp_path: Path) -> None:
    """What the others run in pytest's own process; asked for what does not depend on the jobs of other tests."""
    words = ("status", "--no-such-option")
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == ftctl(*words, cwd=tmp_path)
    assert done.returncode == 2


# --- finding the run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "stop", "report", "clean"])
def test_which_run(command: str, tmp_path: Path) -> None:
    code, out, err = ftctl(command, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("ftctl: cannot find the run: there is no run in runs/ here; name a run dir or a job id")
    assert err.endswith("; `ftctl jobs` lists your jobs\n")
    journal(tmp_path / "runs" / "one", started(), {"event": "job_finished", "code": 0})
    for name in ([], ["one"], ["runs/one"], [tmp_path / "runs" / "one"]):
        assert "cannot find" not in ftctl(command, *name, cwd=tmp_path)[2]
    journal(tmp_path / "runs" / "two", started("k"))
    code, _, err = ftctl(command, cwd=tmp_path)
    assert code == 2
    assert err.endswith("there are 2 runs in runs/; name one; known are one, two\n")
    code, _, err = ftctl(command, "three", cwd=tmp_path)
    assert code == 2
    assert err.endswith("no events.jsonl in three or runs/three; known are one, two; `ftctl jobs` lists your jobs\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "missing command"),
        (["statsu"], "no such command 'statsu'"),
        (["status", "a", "b"], "`b` is more than this command takes"),
        (["stop", "--timeout", "5x"], "'5x' is not a duration"),
        (["clean", "x", "--all"], "RUN and --all exclude each other"),
        (["report", "--jsn"], "no such option"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_sentence(words: list[str], says: str, tmp_path: Path) -> None:
    code, out, err = ftctl(*words, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("ftctl: cannot read the command line: ")
    assert says.lower() in err.lower()
    assert err.count("\n") == 1


def test_help_and_version(tmp_path: Path) -> None:
    code, out, _ = ftctl("--help", cwd=tmp_path)
    assert code == 0
    for name in ("status", "stop", "report", "clean"):
        assert name in out
        assert ftctl(name, "--help", cwd=tmp_path)[0] == 0
    assert ftctl("--version", cwd=tmp_path)[1].startswith("ftctl ")


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"[]\n", b'{"event": "job_st'])
def test_a_journal_with_nothing_whole_in_it(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(content)
    for command in ("status", "stop", "report", "clean"):
        code, _, err = ftctl(command, tmp_path, cwd=tmp_path)
        assert code in (1, 2)
        assert err.startswith("ftctl: cannot ")


# --- status, stop -----------------------------------------------------------------------------------------


def test_status_and_stop_of_a_running_job(job: FtJob) -> None:
    start(job)
    job.wait_step(20)
    code, out, _ = ftctl("status", job.run_dir, cwd=job.home)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"job {job.job_id}: running, attempt 0, 3 of 3 restarts left"
    assert [row.split()[1] for row in lines[4:]] == [str(pid) for pid in job.pids()]
    assert all("train" in row for row in lines[4:])
    told = json.loads(ftctl("status", job.job_id, "--json", cwd=job.home)[1])
    assert (told["running"], told["state"], len(told["ranks"])) == (True, "running", 2)

    code, out, err = ftctl("stop", job.run_dir, cwd=job.home)
    assert (code, err) == (0, "")
    sentence = f"stopped (exit code 143), there was nothing to save; `ftctl report {job.job_id}` tells what happened"
    assert out.splitlines() == [
        f"job {job.job_id} (pid {job.supervisor.pid}) is asked to stop",
        f"job {job.job_id}: {sentence}",
    ]
    assert job.wait() == 143
    assert job.events("stop_requested")[0]["by"] == "ftctl stop"

    assert ftctl("status", job.run_dir, cwd=job.home) == (1, f"job {job.job_id} is not running: {sentence}\n", "")
    told = json.loads(ftctl("status", job.run_dir, "--json", cwd=job.home)[1])
    assert (told["running"], told["ended"]["event"]) == (False, "job_stopped")
    code, _, err = ftctl("stop", job.run_dir, cwd=job.home)
    assert (code, err) == (1, f"ftctl: cannot stop job {job.job_id}: it is not running: {sentence}\n")
    job.assert_clean()


@pytest.mark.parametrize("command", ["status", "stop", "nodes"])
def test_a_job_that_runs_elsewhere_and_has_no_agent_here(command: str, tmp_path: Path) -> None:
    run_dir = journal(tmp_path / "run", started(f"elsewhere-{os.getpid()}", host="another-host"))
    code, out, err = ftctl(command, run_dir, cwd=tmp_path)
    assert (code, out) == (1, "")
    assert "it was started on another-host and has told no end, and none of its agents runs on this machine" in err
    journal(tmp_path / "over", started("over", host="another-host"), {"event": "job_finished", "code": 0})
    code, out, err = ftctl(command, tmp_path / "over", cwd=tmp_path)
    assert code == 1
    assert "is not running: done" in out + err


def test_the_nodes_of_a_job_of_one(job: FtJob) -> None:
    start(job)
    job.wait_step(1)
    code, out, err = ftctl("nodes", job.run_dir, cwd=job.home)
    assert (code, out) == (1, "")
    assert err == "ftctl: cannot do that: known are `save`, `status` and `stop`\n"
    assert ftctl("stop", job.run_dir, cwd=job.home)[0] == 0


def test_stop_does_not_have_to_wait(job: FtJob) -> None:
    start(job)
    job.wait_step(1)
    rank = job.pids()[0]
    os.kill(rank, signal.SIGSTOP)  # it cannot leave yet
    code, _, err = ftctl("stop", job.run_dir, "--timeout", "0.01s", cwd=job.home)
    assert code == 1
    assert err.endswith("still runs 10 ms after it was asked to stop\n")
    assert ftctl("stop", job.run_dir, "--no-wait", cwd=job.home)[0] == 0
    os.kill(rank, signal.SIGCONT)
    assert job.wait() == 143
    assert len(job.events("stop_requested")) == 1


def test_a_job_id_is_enough_anywhere_while_its_memory_is_there(job: FtJob, tmp_path_factory: Any) -> None:
    start(job)
    job.wait_step(1)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert ftctl("status", job.job_id, cwd=elsewhere)[0] == 0
    assert ftctl("stop", job.job_id, cwd=elsewhere)[0] == 0
    assert job.wait() == 143


# --- report -----------------------------------------------------------------------------------------------


def test_report_of_a_job_that_lost_a_rank(job: FtJob) -> None:
    start(job, steps=60, FAULT="1 20")
    assert job.wait() == 0, job.stderr
    told = json.loads(ftctl("report", job.run_dir, "--json", cwd=job.home)[1])
    (incident,) = told["incidents"]
    assert (incident["kind"], incident["rank"], incident["source"]) == ("killed", 1, None)
    assert incident["steps_lost"] == 20  # nothing was in memory: from the beginning
    assert 0 < incident["resumed_after"] < incident["recovered_after"]
    assert abs(sum(told["seconds"].values()) - told["wall_seconds"]) < 1e-6
    assert told["seconds"]["lost"] == pytest.approx(20 * told["step_seconds"])
    assert told["seconds"]["unknown"] == told["seconds"]["down"] == 0
    assert 0 < told["effective"] < 1
    code, out, _ = ftctl("report", job.run_dir, cwd=job.home)
    assert code == 0
    assert "20 steps lost" in out
    assert out.splitlines()[0].endswith("1 run of the supervisor, 2 attempts, 1 incident")


@pytest.mark.long
def test_report_of_a_supervisor_that_was_killed_and_started_again(job: FtJob) -> None:
    start(job)
    reached = min(rank["step"] for rank in job.wait_step(30)["ranks"])
    job.supervisor.kill()
    job.supervisor.wait()
    code, out, _ = ftctl("report", job.run_dir, cwd=job.home)
    assert code == 0
    assert "the journal ends here" in out
    assert ftctl("status", job.run_dir, cwd=job.home)[1].startswith(
        f"job {job.job_id} is not running: {SUPERVISOR_GONE}; the same command starts it again, from the"
    )
    start(job, steps=40, LATE="0.5")
    assert job.wait() == 0
    # It must not take the pages of the dead for its own ranks: those have the same attempt number.
    assert job.events("resumed")[1]["mono"] - job.events("attempt_started")[1]["mono"] > 0.2
    told = json.loads(ftctl("report", job.run_dir, "--json", cwd=job.home)[1])
    assert told["runs"] == 2
    assert reached <= told["steps_lost"] <= reached + 200
    assert told["seconds"]["down"] > 0
    assert abs(sum(told["seconds"].values()) - told["wall_seconds"]) < 1e-6
    assert [entry["what"] for entry in told["entries"]] == ["started", "killed", "started", "job_finished"]
    assert "the supervisor ended without a word (killed?)\n" in ftctl("report", job.run_dir, cwd=job.home)[1]


def test_report_of_a_script_that_does_not_say_its_steps(job: FtJob) -> None:
    script = job.home / "plain.py"
    script.write_text("import time\nprint('hello')\ntime.sleep(1)\n")
    job.start(script=script, args=())
    assert job.wait() == 0, job.stderr
    told = json.loads(ftctl("report", job.run_dir, "--json", cwd=job.home)[1])
    assert told["seconds"]["unknown"] >= 0.3
    assert told["effective"] is None
    job.assert_clean()


# --- clean ------------------------------------------------------------------------------------------------


def test_a_job_that_was_stopped_says_that_the_same_command_goes_on(tmp_path: Path) -> None:
    """A stopped job's output is named, but only if the last run has written to it.

    Taken out: without the comparison of times the output of an earlier run is named.
    """
    stopped = {"event": "job_stopped", "code": 75, "step": 12}
    run = journal(tmp_path / "run", started(), stopped)
    (run / "terminal.log").write_text("ftlaunch: stopped\n")
    os.utime(run / "terminal.log", (1, 1))
    says = "stopped (exit code 75), step 12 is saved; the same command goes on from there"
    more = "`ftctl report j` tells what happened\n"
    for command, begin in (("status", "job j is"), ("stop", "ftctl: cannot stop job j: it is")):
        _, out, err = ftctl(command, run, cwd=tmp_path)
        assert out + err == f"{begin} not running: {says}; {more}"
    os.utime(run / "terminal.log", (2e9, 2e9))
    assert ftctl("attach", run, cwd=tmp_path)[2].endswith(f"{says}; what it said is in {run / 'terminal.log'}; {more}")


@pytest.mark.long
def test_ctrl_c_while_a_job_stops_says_that_it_still_does(job: FtJob) -> None:
    script, out = job.home / "stays.py", job.home / "said"
    script.write_text("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here', flush=True)\n"
                      "time.sleep(1000)\n")  # fmt: skip
    job.start("--grace", "5m", script=script, args=(), ranks=1)
    wait_for(lambda: "here" in job.stdout, "the rank")
    with out.open("wb") as file:
        command = [sys.executable, "-m", "ftlaunch.cli.ctl", "stop", str(job.run_dir)]
        asking = subprocess.Popen(command, stdout=file, stderr=file, cwd=job.home)
    job.wait_event("stop_requested")
    wait_for(lambda: "is asked to stop" in out.read_text(), "the wait")
    asking.send_signal(signal.SIGINT)
    assert asking.wait(60) == 130
    says = f"interrupted; job {job.job_id} was asked to stop and still does: `ftctl status {job.job_id}` shows it"
    assert out.read_text().endswith(f"ftctl: {says}\n")
