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
        assert follower.wait(30) == 0
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
    assert ftctl("logs", run, "--since", "1h", "--attempt", "1", "--rank", "1", cwd=tmp_path) == (0, "", "")


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
