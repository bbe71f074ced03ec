"""`ftctl top`: a running job, live, in a terminal, in a pipe, and where the job breaks meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.contrast import contrast, grey
from tests.support.ctl import ftctl, journal, start, started
from tests.support.harness import FtJob
from tests.support.pictures import loaded_by, offline
from tests.support.terminals import Terminal
from tests.support.top import TOP, watched

pytestmark = pytest.mark.long

pytest.importorskip("textual", reason="Textual is not installed (pip install 'ftlaunch[top]')")


def test_a_rank_is_killed_and_the_incident_appears(job: FtJob) -> None:
    start(job, seconds=0.05)
    job.wait_step(3)
    with watched(job) as top:
        top.wait_for("2 ranks: 2 train; memory")
        os.kill(job.pids()[1], signal.SIGKILL)
        shown = top.wait_for("! incident: rank 1 was killed by SIGKILL")
        assert "attempt 1, " in top.wait_for("attempt 1, ")
        assert max(map(len, shown.splitlines())) <= 80
        top.type("q")
        assert top.end() == 0
    assert job.events("incident")


def test_keys_show_a_log_stop_the_job_after_a_question_and_leave(job: FtJob) -> None:
    start(job, seconds=0.05)
    job.wait_step(3)
    with watched(job) as top:
        top.wait_for("2 ranks: 2 train")
        top.type("l")
        top.wait_for("resumed at 0")
        top.type("\x1b")
        top.wait_for("2 ranks: 2 train")
        top.type("x")
        top.wait_for("y: stop it; n: go on")
        top.type("n")
        top.wait_for("2 ranks: 2 train")
        assert not job.events("stop_requested")
        top.type("x")
        top.wait_for("y: stop it; n: go on")
        top.type("y")
        top.wait_for(f"job {job.job_id[:20]}", "stopped")
        job.wait()
        top.wait_for("the job has ended: stopped")
        top.type("q")
        assert top.end() == 0
    assert job.events("stop_requested")[0]["by"] == "ftctl top"


def test_ctrl_c_leaves_also_from_what_is_shown_in_front(job: FtJob) -> None:
    start(job, seconds=0.05)
    job.wait_step(3)
    for key in ("", "l"):
        with watched(job) as top:
            top.wait_for("2 ranks: 2 train")
            top.type(key)
            top.wait_for("resumed at 0" if key else "2 ranks: 2 train")
            top.type("\x03")
            assert top.end() == 0


def test_it_goes_on_when_the_supervisor_is_killed_and_comes_back(job: FtJob) -> None:
    start(job, seconds=0.05)
    job.wait_step(3)
    with watched(job) as top:
        top.wait_for("2 ranks: 2 train")
        job.supervisor.kill()
        job.supervisor.wait()
        top.wait_for("its supervisor is gone")
        start(job, steps=1_000_000, seconds=0.05)
        job.wait_event("resumed", 2)  # a supervisor that is told to stop before it has begun says nothing
        top.wait_for("2 ranks: 2 train")
        job.supervisor.terminate()
        job.wait()
        assert "Traceback" not in top.wait_for("the job has ended: stopped")


@pytest.mark.slow
@pytest.mark.parametrize("colour", [True, False], ids=["colour", "NO_COLOR"])
@pytest.mark.parametrize("term", ["xterm-256color", "vt100"])
def test_an_incident_can_be_read_with_colours_and_without(job: FtJob, term: str, colour: bool) -> None:
    """Without colours it is bold and reversed: red as a grey had a contrast of 1.5. The chosen rank has a sign, too."""
    start(job, seconds=0.05, FAULT="1 30")
    job.wait_event("recovered")
    with watched(job, TERM=term, **({} if colour else {"NO_COLOR": "1"})) as top:
        assert ">     0 " in top.wait_for(">     0 ")
        incident = "! incident: rank 1 was killed by SIGKILL"
        top.wait_for(incident)
        shown = top.cells(incident)
        assert min(map(contrast, shown)) >= 4.5, shown
        assert all(cell.bold and cell.reverse is not colour for cell in shown)
        assert grey(shown) is not colour
        assert colour or grey(top.all_cells)


def test_a_pipe_gets_lines_until_the_job_ends(job: FtJob) -> None:
    start(job, seconds=0.05)
    job.wait_step(3)
    with subprocess.Popen([*TOP, str(job.run_dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        assert top.stderr is not None
        said = [top.stdout.readline()]
        os.kill(job.pids()[1], signal.SIGKILL)
        while "! incident: rank 1 was killed by SIGKILL" not in said[-1]:
            said.append(top.stdout.readline())
            assert said[-1], top.stderr.read()
        job.supervisor.terminate()
        said += top.stdout.readlines()
        assert (top.wait(), top.stderr.read()) == (0, "")
    assert any("2 ranks: " in line for line in said)
    assert not any("\x1b" in line for line in said)
    assert said[-1].startswith(f"job {job.job_id}: stopped (exit code {job.wait()})")


def test_a_dumb_terminal_and_a_tiny_one(job: FtJob) -> None:
    start(job, seconds=0.05)
    job.wait_step(3)
    with watched(job, lines=40, TERM="dumb") as top:
        top.wait_for("2 ranks: 2 train")
        assert b"\x1b[" not in top.raw
    with watched(job, lines=6, columns=20) as top:
        top.wait_for("restarts left")
        top.type("q")
        assert top.end() == 0


def test_a_reader_that_leaves_is_no_error(job: FtJob) -> None:
    start(job, seconds=0.05)
    job.wait_step(3)
    with subprocess.Popen([*TOP, str(job.run_dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        assert top.stderr is not None
        top.stdout.readline()
        top.stdout.close()
        assert "Traceback" not in top.stderr.read()


def test_a_job_that_does_not_run(tmp_path: Path) -> None:
    run = journal(tmp_path / "run", started(), {"event": "job_finished", "code": 0})
    assert ftctl("top", run, cwd=tmp_path) == (1, "job j is not running: done (exit code 0)\n", "")
    assert ftctl("top", "nothing", cwd=tmp_path)[0] == 2


def test_without_textual_one_sentence_says_how_to_get_it(job: FtJob, tmp_path: Path) -> None:
    start(job, seconds=0.05)
    job.wait_step(3)
    code = "import sys; sys.modules['textual'] = None; from ftlaunch.cli import ctl; ctl.main(sys.argv[1:])"
    with Terminal([sys.executable, "-c", code, "top", str(job.run_dir)], 24, 80) as top:
        assert top.end() == 1
        said = "".join(top.text.splitlines())  # the terminal breaks lines in the midst of words
    assert "Textual is not installed; `pip install 'ftlaunch[top]'` brings it" in said
    assert "Traceback" not in said


async def look(job: FtJob, folder: Path | None) -> str:
    from ftlaunch.cli.asking import ask_job
    from ftlaunch.history.runs import load
    from ftlaunch.views.top.fullscreen.app import TopScreen
    from ftlaunch.views.top.job_watch import JobWatch

    app = TopScreen(JobWatch(load(job.run_dir), lambda run, request: ask_job(run, None, request)), lambda: "")
    async with app.run_test(size=(80, 24)) as pilot:
        while "recovered" not in (drawn := app.export_screenshot().replace("&#160;", " ")):
            await pilot.pause(0.1)
        if folder is not None:
            await pilot.pause(3.0)
            (folder / "top.svg").write_text(offline(app.export_screenshot()))
    return drawn


@pytest.mark.slow
def test_the_picture_of_the_guide(job: FtJob) -> None:
    """A job with hooks, of which a rank is killed. FT_PICTURES names the folder that it is written to."""
    import asyncio

    words = ("--out", str(job.out), "--steps", "1000000", "--step-time", "0.1")
    job.start("--max-restarts", "3", "--storage-interval", "20", args=words, env={"FAULT": "sigkill 1 30"})
    job.wait_step(3)
    folder = os.environ.get("FT_PICTURES")
    drawn = asyncio.run(asyncio.wait_for(look(job, Path(folder) if folder else None), 90))
    assert "incident" in drawn
    assert ">ftctl top<" in drawn
    assert loaded_by(drawn), "Textual loads no fonts any more: offline() can go"
    assert loaded_by(offline(drawn)) == []
    assert "monospace" in offline(drawn)
