"""A rank hangs, in every way there is: the autopsy names the rank, the line, the collective, and who waits.

Taken out, and seen to fail: the witness (gil), stopped ranks coming last (stop), the stacks of children (loader).
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

from ftlaunch.autopsy.procfs import catches_stacks_signal
from ftlaunch.views.top.rank_stacks import NoStacks, RankStacks
from ftlaunch_contract.protocol import STACKS_SIGNAL

HANGS = JOBS / "hangs.py"
AT = 3
HAS_NUMBERS = not torch.__version__.startswith("2.10.")  # its flight recorder is off
NUMBER = r" #\d+" if HAS_NUMBERS else ""


def line(mark: str) -> str:
    """`hangs.py:88` of the line with a mark."""
    lines = HANGS.read_text().splitlines()
    return f"hangs.py:{next(n for n, text in enumerate(lines, 1) if text.endswith(f'# HERE {mark}'))}"


def hangs(job: FtJob, *hows: str, startup: str = "10s") -> list[dict[str, Any]]:
    """The incidents of a job in which rank 1 hangs in these ways, one an attempt; it did. Each begins at step 0."""
    options = ("--hang-timeout", "2s", "--startup-timeout", startup, "--grace", "1s", "--backoff-first", "0.1s",
               "--backoff-max", "0.2s", "--max-hang-restarts", str(len(hows) - 1), "--max-same-error", "off",
               "--memory-interval", "0", "--storage-interval", "off")  # fmt: skip
    job.start(*options, script=HANGS, args=("; ".join(hows), "1", str(AT)), env={"GLOO_SOCKET_IFNAME": "lo"})
    assert job.wait() == 1, job.stderr
    fired = (job.home / "fired").read_text().splitlines()
    assert [how for how in hows if f"{how} 1" in fired] == list(hows)
    incidents = job.events("incident")
    assert [incident["kind"] for incident in incidents] == ["hang"] * len(hows)
    job.assert_clean()
    return incidents


CASES = {
    "sleep": rf"it sleeps at {line('sleep')} \(in <lambda>\)",
    "spin": r"it runs at hangs.py:\d+ \(in spin\) \(\d+% of a processor\)",
    "stop": rf"it was stopped at {line('stop')}",
    "gil": rf"it is in C code that keeps the interpreter's lock \(GIL\), called at {line('the GIL')}",
    "lock": rf"it waits for a lock or for another thread at {line('the lock')} \(in lock_and_collective\), which may be"
    rf" held by the rank's thread that is in \w+{NUMBER} at {line('the holder')}",
    "pipe": rf"it is in read of pipe:\[\d+\] at {line('the pipe')}",
    "loader": rf"it waits for its data loader at {line('the loader')}, whose worker with pid \d+ is at"
    rf" {line('in the worker')} \(in __getitem__\)",
    "leave": rf"it waits for a lock or for another thread at {line('after the loop')}",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "hows",
    [("sleep", "stop", "gil", "lock"), pytest.param(("spin", "pipe", "loader", "leave"), marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_who_where_and_who_waits(job: FtJob, hows: tuple[str, ...]) -> None:
    for how, incident in zip(hows, hangs(job, *hows), strict=True):
        assert incident["rank"] == 1, how
        assert re.search(CASES[how], incident["sentence"]), incident["sentence"]
        number = f" #{AT + 1}" if HAS_NUMBERS else ""
        assert f"rank 0 waits for it in all_reduce{number} at {line('all_reduce')}" in incident["sentence"]


def test_all_cases_are_tried() -> None:
    assert set(CASES) == {"sleep", "stop", "gil", "lock", "spin", "pipe", "loader", "leave"}


def assert_disagree(said: str, places: dict[int, str], why: str) -> None:
    """Both are to blame: whichever is named, it is where it is, and so is the other."""
    assert said.startswith(("rank 0 ", "rank 1 "))
    for one, other in ((0, 1), (1, 0)):
        if said.startswith(f"rank {one} "):
            assert f"; it waits in {places[one]}, but rank {other} is in {places[other]}: {why}" in said


@pytest.mark.skipif(not HAS_NUMBERS, reason="the flight recorder of torch 2.10 is off: install torch 2.11 or newer")
@pytest.mark.slow
def test_the_ranks_disagree_and_all_are_in_the_same_collective(job: FtJob) -> None:
    different, crossed, cut = (incident["sentence"] for incident in hangs(job, "mismatch", "groups", "cut"))
    places = {0: f"all_reduce #{AT + 1} at {line('all_reduce')}", 1: f"barrier #{AT + 1} at {line('the hang')}"}
    assert_disagree(different, places, "they disagree on their collectives")
    at = f"at {line('the groups')} (in other_group)"
    places = {0: f"all_reduce #1 of group 2 {at}", 1: f"all_reduce #1 of group 1 {at}"}
    assert_disagree(crossed, places, "they take their groups in different orders")
    assert re.search(
        rf"it waits in all_reduce #\d+ at {line('all_reduce')}, and so does rank \d: all have entered it", cut
    ), cut


@pytest.mark.slow
def test_a_rank_that_never_comes(job: FtJob) -> None:
    [incident] = hangs(job, "startup", startup="6s")
    assert incident["rank"] == 1
    assert f"it sleeps at {line('startup')}" in incident["sentence"]
    assert f"rank 0 waits for it in init_process_group at {line('init')}" in incident["sentence"]


@pytest.mark.long
def test_what_is_left(job: FtJob) -> None:
    """The files of both ranks, private; the report and the terminal say where."""
    [incident] = hangs(job, "sleep")
    directory = Path(incident["autopsy"])
    assert directory == job.run_dir / "autopsy" / "attempt_0"
    assert str(directory) in job.stderr
    names = {path.name for path in directory.iterdir()}
    wanted = {f"rank_{r}.{kind}" for r in (0, 1) for kind in ("stack.txt", "proc.json", "flight.json")}
    assert wanted | {"verdict.txt"} == names - {"gpu.txt"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    facts = json.loads((directory / "rank_1.proc.json").read_text())
    assert facts["missing"] == {}
    assert facts["rss"] > 0 < facts["fds"]
    main = next(thread for thread in facts["threads"] if thread["tid"] == facts["pid"])
    slept_in = "clock_nanosleep" if sys.version_info >= (3, 11) else "pselect6"
    assert (main["state"], main["syscall"], main["sleeps"]) == ("S", slept_in, True)
    assert (directory / "verdict.txt").read_text().strip() in incident["sentence"]
    assert "hangs.py" in job.log(0, 1), "stacks are in the log too"
    report = subprocess.run(
        [sys.executable, "-m", "ftlaunch.cli.ctl", "report", str(job.run_dir)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "it sleeps at hangs.py" in " ".join(report.split())
    assert str(directory) in report.replace("\n", "").replace(" ", "")


@pytest.mark.long
def test_told_to_stop_in_the_middle_of_it(job: FtJob) -> None:
    """No more of it: the job stops as it would have otherwise."""
    job.start("--hang-timeout", "2s", "--grace", "4s", script=HANGS, args=("sleep", "1", str(AT)))
    job.wait_event("hang_seen")
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    assert job.events("job_stopped")[0]["step"] == AT
    job.assert_clean()


@pytest.mark.long
def test_the_collectives_own_time_out_comes_first(job: FtJob) -> None:
    """Ranks 0 and 2 die of it, long before the hang timeout: the rank that sleeps is named all the same.

    Taken out: without `COMM_TIMEOUT` in Incidents.judge_failed_ranks() rank 0 is blamed.
    """
    assert_timed_out(job)


@pytest.mark.long
def test_a_rank_whose_interpreter_has_ended_is_asked_nothing(job: FtJob) -> None:
    """A rank whose interpreter has ended before the autopsy is asked for nothing.

    Taken out: without the look whether the signal is caught the question for the lock crashes it; without SIG_IGN in
    bootstrap.py as well the question for its stacks ends it, and it is blamed.
    """
    assert_timed_out(job, LINGERS="2")
    facts = json.loads((job.run_dir / "autopsy" / "attempt_0" / "rank_2.proc.json").read_text())
    assert facts["missing"]["stack"] == facts["missing"]["lock_held"] == "the rank's interpreter has ended"
    [end] = [event for event in job.events("rank_exited") if (event["attempt"], event["rank"]) == (0, 2)]
    assert end["signal"] in ("SIGTERM", "SIGKILL"), "what it was told to end by"


def test_the_question_for_stacks_does_not_end_a_rank_that_is_ending(job: FtJob, tmp_path: Path) -> None:
    """Taken out: without SIG_IGN in bootstrap.py signal 40 ends the rank. `ftctl top` asks it for nothing."""
    script = tmp_path / "lingers.py"
    script.write_text(
        "import ctypes, ftlaunch_hooks\nctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).pause)\nopen('hooked', 'x')\n"
    )
    job.start(script=script, ranks=1)
    pid = job.wait_event("attempt_started")["pids"][0]
    wait_for((job.home / "hooked").exists, "the hooks")
    wait_for(lambda: not catches_stacks_signal(pid), "the end of the interpreter")
    shown = RankStacks(0, pid, [job.memory])
    for ask in (shown.ask, shown.interrupt):
        with pytest.raises(NoStacks, match="its interpreter has ended: to ask it would end it"):
            ask()
    os.kill(pid, STACKS_SIGNAL)
    os.kill(pid, signal.SIGTERM)
    assert job.wait() == 0, job.stderr
    assert job.events("rank_exited")[0]["signal"] == "SIGTERM"


def assert_timed_out(job: FtJob, **env: str) -> None:
    """Ranks 0 and 2 wait for rank 1 in vain, each 3 s, and rank 1 is named."""
    options = ("--hang-timeout", "60s", "--grace", "1s", "--memory-interval", "0", "--storage-interval", "off")
    env = {"GLOO_SOCKET_IFNAME": "lo", "COLLECTIVE_TIMEOUT": "3", **env}
    job.start(*options, script=HANGS, args=("sleep", "1", str(AT)), ranks=3, env=env)
    assert job.wait() == 0, job.stderr
    assert (job.home / "fired").read_text() == "sleep 1\n"
    [seen], [incident] = job.events("hang_seen"), job.events("incident")
    assert seen["rule"] == "timeout"
    assert (incident["kind"], incident["rank"], incident["restarts_left"]) == ("hang", 1, 2)
    assert re.search(CASES["sleep"], incident["sentence"]), incident["sentence"]
    job.assert_clean()
