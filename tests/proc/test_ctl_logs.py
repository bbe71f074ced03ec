"""`ftctl logs`: what ranks have printed, and what they print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.ctl import ftctl, journal, started
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

SCRIPT = """
import os, pathlib, sys, time
rank, attempt = os.environ["RANK"], os.environ["FTLAUNCH_ATTEMPT"]
print(f"rank {rank} in attempt {attempt}", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
sys.stdout.write(f"rank {rank} ends \\x1b[31m")
"""


def left(run_dir: Path, **logs: str) -> Path:
    """A run dir with logs: `a0r1="text"` is that of rank 1 in attempt 0."""
    journal(run_dir, started(), {"event": "job_finished", "code": 0})
    for name, text in logs.items():
        attempt, rank = name[1:].split("r")
        path = run_dir / "logs" / f"attempt_{attempt}" / f"rank_{rank}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return run_dir


def test_the_newest_attempt_is_shown_rank_by_rank(tmp_path: Path) -> None:
    run = left(tmp_path / "run", a0r0="old\n", a10r0="a\nb", a10r1="c\n", a9r0="older\n", a10r10="d\n")
    assert ftctl("logs", run, cwd=tmp_path) == (0, "[0] a\n[0] b\n[1] c\n[10] d\n", "")
    assert ftctl("logs", run, "--rank", "1", cwd=tmp_path)[1] == "c\n"
    assert ftctl("logs", run, "--rank", "10", "--rank", "0", cwd=tmp_path)[1] == "[10] d\n[0] a\n[0] b\n"
    assert ftctl("logs", run, "--attempt", "0", cwd=tmp_path)[1] == "old\n"
    assert ftctl("logs", run, "--follow", "--rank", "0", cwd=tmp_path)[1] == "a\nb\n"  # it has ended


def test_what_a_job_prints_commands_no_terminal(tmp_path: Path) -> None:
    run = left(tmp_path / "run", a0r0="\x1b]0;title\x07 50 %\r\n")
    assert ftctl("logs", run, cwd=tmp_path)[1] == "\\x1b]0;title\\x07 50 %\\r\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--attempt", "3"], 1, "cannot show attempt 3 of job j: it has left no logs in"),
        (["--attempt", "3"], 1, "there are 0, 1"),
        (["--rank", "7"], 1, "cannot show rank 7 of attempt 1: it has no log; those with one: 0"),
        (["--follow", "--attempt", "0"], 2, "--follow and --attempt exclude each other"),
        (["--rank", "-1"], 2, "invalid value for '--rank'"),
    ],
)
def test_what_is_not_there_is_said(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    run = left(tmp_path / "run", a0r0="a\n", a1r0="b\n")
    found, out, err = ftctl("logs", run, *words, cwd=tmp_path)
    assert (found, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_run_without_logs(tmp_path: Path) -> None:
    run = left(tmp_path / "run")
    assert ftctl("logs", run, cwd=tmp_path)[0] == 1
    assert ftctl("logs", run, "--follow", cwd=tmp_path) == (0, "", "")


@pytest.mark.long
def test_followed_lines_come_as_they_are_printed_and_over_a_restart(job: FtJob) -> None:
    """Taken out: without the look at newer attempts it waits for lines of one that is over."""
    script, go = job.home / "talks.py", job.home / "go"
    script.write_text(SCRIPT)
    job.start("--log-dir", str(job.home / "elsewhere"), script=script, args=(str(go),))
    job.wait_event("attempt_started")
    out = job.home / "followed"
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "logs", "--follow", str(job.run_dir)]
    with out.open("wb") as file:
        follower = subprocess.Popen(command, stdout=file, cwd=job.home)
    try:
        wait_for(lambda: out.read_text().count("in attempt 0") == 2, "what is printed")
        os.kill(job.pids()[0], signal.SIGKILL)
        wait_for(lambda: out.read_text().count("in attempt 1") == 2, "what the next attempt prints")
        go.touch()
        assert job.wait() == 0, job.stderr
        assert follower.wait(60) == 0
    finally:
        follower.kill()
        follower.wait()
    ends = [f"[{rank}] rank {rank} ends \\x1b[31m" for rank in (0, 1)]
    lines = [f"[{rank}] rank {rank} in attempt {attempt}" for attempt in (0, 1) for rank in (0, 1)]
    assert sorted(out.read_text().splitlines()) == sorted(lines + ends)


def marked(run_dir: Path, attempt: int, *notes: str) -> None:
    text = "".join(f"{note}\n" for note in notes)
    (run_dir / "logs" / f"attempt_{attempt}" / "marks.0.jsonl").write_text(text)


def test_since_shows_what_came_after_the_last_note_before_it(tmp_path: Path) -> None:
    """The line that a note cuts is shown whole. Attempts that had ended before show nothing."""
    run = left(tmp_path / "run", a0r0="first\n", a1r0="one\ntwo\nthree\n", a1r1="x\ny\n")
    os.utime(run / "logs/attempt_0/rank_0.log", (500, 500))
    marked(run, 0, '{"t": 400, "sizes": {"0": 0}}')
    marked(run, 1, '{"t": 1000, "sizes": {"0": 0, "1": 0}}', '{"t": 1010, "sizes": {"0": 6}}', '{"t": 1020, "si')
    assert (
        ftctl("logs", run, "--since", "1970-01-01T00:16:55+00:00", cwd=tmp_path)[1]
        == "[0] two\n[0] three\n[1] x\n[1] y\n"
    )
    assert ftctl("logs", run, "--since", "1970-01-01T00:16:45Z", "--rank", "0", cwd=tmp_path)[1] == "one\ntwo\nthree\n"
    assert ftctl("logs", run, "--since", "1970-01-01T00:00:01Z", "--follow", "--rank", "0", cwd=tmp_path)[1].startswith(
        "first\n"
    )
    os.utime(run / "logs/attempt_1/rank_1.log", (500, 500))
    code, out, err = ftctl("logs", run, "--since", "1h", "--attempt", "1", "--rank", "1", cwd=tmp_path)
    assert (code, out) == (0, "")
    assert err.startswith("ftctl: the ranks of job j have printed nothing since ")


def test_a_run_without_notes_shows_logs_that_have_grown_since(tmp_path: Path) -> None:
    run = left(tmp_path / "run", a0r0="a\n", a0r1="b\n")
    os.utime(run / "logs/attempt_0/rank_0.log", (500, 500))
    assert ftctl("logs", run, "--since", "1h", cwd=tmp_path)[1] == "[1] b\n"


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    code, _, err = ftctl("logs", left(tmp_path / "run", a0r0="a\n"), "--since", "noon", cwd=tmp_path)
    assert code == 2
    assert "'noon' is no duration and no time; write 10m or 2031-01-02T15:04" in err


def test_a_job_notes_how_long_its_logs_are(job: FtJob) -> None:
    """Tried: without the last note an attempt's last lines are shown however long ago it ended."""
    script, go = job.home / "talks.py", job.home / "go"
    script.write_text(SCRIPT)
    job.start(script=script, args=(str(go),))
    wait_for(lambda: "in attempt 0" in job.stdout, "what is printed")
    os.kill(job.pids()[0], signal.SIGKILL)
    wait_for(lambda: "in attempt 1" in job.stdout, "what the next attempt prints")
    go.touch()
    assert job.wait() == 0, job.stderr
    for attempt in (0, 1):
        folder = job.run_dir / "logs" / f"attempt_{attempt}"
        known: dict[str, int] = {}
        for line in (folder / "marks.0.jsonl").read_text().splitlines():
            known |= json.loads(line)["sizes"]
        sizes = {str(rank): (folder / f"rank_{rank}.log").stat().st_size for rank in (0, 1)}
        if attempt == 0:  # of the last attempt the note may be lost with the supervisor's end
            assert known == sizes


AGAIN = """
import os, pathlib, sys, time
rank, attempt, life = os.environ["RANK"], os.environ["FTLAUNCH_ATTEMPT"], os.environ["LIFE"]
print(f"life {life} attempt {attempt}", flush=True)
printed = pathlib.Path(sys.argv[1] + ".printed")
if rank == "0":
    printed.touch()
if life == "1" and attempt == "0" and rank == "1":
    while not printed.exists():  # rank 0 is ended as soon as this rank has failed
        time.sleep(0.01)
    raise ValueError("in the first life")
while (life, attempt) == ("1", "0") or not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print(f"life {life} ends", flush=True)
"""


def run_once_more(job: FtJob, life: int, *options: str, ranks: int = 2) -> Path:
    """Start the job whose ranks print in which life of it they run; the file whose being there lets it end."""
    script, go = job.home / "again.py", job.home / f"go_{life}"
    script.write_text(AGAIN)
    job.start(*options, script=script, args=(str(go),), env={"LIFE": str(life)}, ranks=ranks)
    return go


@pytest.mark.long
def test_of_a_job_that_was_started_again_the_newest_run_is_shown(job: FtJob) -> None:
    """The first run had two attempts, the second one is killed in its first attempt, the third has one rank less.

    Tried: the highest number is the first run's attempt 1, and without the note that says where a run begins the first
    run's lines of attempt 0 are shown.
    """
    run_once_more(job, 1, "--backoff-first", "0.1s").touch()
    assert job.wait() == 0, job.stderr
    go = run_once_more(job, 2)
    wait_for(lambda: job.log(0, 0).count("life 2") and job.log(0, 1).count("life 2"), "what the second run prints")
    job.wait_event("attempt_started", 3)
    shown = "[0] life 2 attempt 0\n[1] life 2 attempt 0\n"
    assert ftctl("logs", job.run_dir, cwd=job.home) == (0, shown, "")
    assert ftctl("logs", job.run_dir, "--attempt", "0", cwd=job.home)[1] == shown
    assert "[1] life 1 attempt 1\n" in ftctl("logs", job.run_dir, "--attempt", "1", cwd=job.home)[1]
    since = ftctl("logs", job.run_dir, "--since", "1h", "--rank", "0", cwd=job.home)[1].splitlines()
    assert since == ["life 1 attempt 1", "life 1 ends", "life 1 attempt 0", "life 2 attempt 0"]
    job.supervisor.kill()
    job.wait()
    wait_for(lambda: len(carriers(job.tag)) == 0, "the end of the ranks")
    assert ftctl("logs", job.run_dir, "--follow", cwd=job.home) == (0, shown, "")
    go.touch()
    go = run_once_more(job, 3, ranks=1)
    wait_for(lambda: job.log(0, 0).count("life 3"), "what the third run prints")
    job.wait_event("attempt_started", 4)
    assert ftctl("logs", job.run_dir, cwd=job.home) == (0, "life 3 attempt 0\n", "")
    code, _, err = ftctl("logs", job.run_dir, "--rank", "1", cwd=job.home)
    assert (code, "rank 1 of attempt 0: it has no log; those with one: 0" in err) == (1, True)
    go.touch()
    assert job.wait() == 0, job.stderr


def test_a_run_that_has_started_no_ranks_yet_shows_nothing_of_those_before(tmp_path: Path) -> None:
    begun = {"event": "attempt_started", "pids": [1], "port": 1}
    run = journal(tmp_path / "run", started(), begun, {"event": "job_finished", "code": 0}, started())
    (run / "logs/attempt_0").mkdir(parents=True)
    (run / "logs/attempt_0/rank_0.log").write_text("old\n")
    code, out, err = ftctl("logs", run, cwd=tmp_path)
    assert (code, out) == (1, "")
    assert "its newest run has started no ranks yet; `--since` and `--attempt` show those of earlier runs" in err
    assert ftctl("logs", run, "--attempt", "0", cwd=tmp_path)[1] == "old\n"
    assert ftctl("logs", run, "--since", "2031-01-01T00:00:00Z", cwd=tmp_path)[1] == ""


@pytest.mark.long
def test_followed_lines_are_those_of_the_run_that_follows(job: FtJob) -> None:
    """Followed from before its ranks have printed anything on."""
    run_once_more(job, 1, "--backoff-first", "0.1s").touch()
    assert job.wait() == 0, job.stderr
    go, out = run_once_more(job, 2), job.home / "followed"
    job.wait_event("job_started", 2)
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "logs", "--follow", "--rank", "1", str(job.run_dir)]
    with out.open("wb") as file:
        follower = subprocess.Popen(command, stdout=file, cwd=job.home)
    try:
        wait_for(lambda: "life 2" in out.read_text(), "what is printed")
        os.kill(job.pids()[0], signal.SIGKILL)
        wait_for(lambda: "life 2 attempt 1" in out.read_text(), "what the next attempt prints")
        go.touch()
        assert job.wait() == 0, job.stderr
        assert follower.wait(60) == 0
    finally:
        follower.kill()
        follower.wait()
    assert out.read_text() == "life 2 attempt 0\nlife 2 attempt 1\nlife 2 ends\n"


def test_ctrl_c_says_that_the_job_goes_on(job: FtJob) -> None:
    """It said that a job which was asked to stop still does; nobody had asked."""
    go, out = run_once_more(job, 2), job.home / "followed"
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "logs", "--follow", str(job.run_dir)]
    job.wait_event("attempt_started")
    with out.open("wb") as file:
        follower = subprocess.Popen(command, stdout=file, stderr=file, cwd=job.home)
    wait_for(lambda: "life 2" in out.read_text(), "what is printed")
    follower.send_signal(signal.SIGINT)
    assert follower.wait(60) == 130
    assert out.read_text().endswith(f"ftctl: job {job.job_id} goes on\n")
    go.touch()
    assert job.wait() == 0, job.stderr


def test_ranks_that_have_printed_nothing_are_told_of(tmp_path: Path) -> None:
    run = left(tmp_path / "run", a2r0="", a2r1="")
    says = "ftctl: the ranks of job j have printed nothing in attempt 2\n"
    assert ftctl("logs", run, cwd=tmp_path) == (0, "", says)
