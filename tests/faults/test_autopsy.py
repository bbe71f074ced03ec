"""A rank hangs, in every way there is: the autopsy names the rank, the line, the collective, and who waits.

Taken out, and seen to fail: the witness (gil), stopped ranks coming last (stop), the stacks of children (loader).
"""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.harness import JOBS, FtJob

HANGS = JOBS / "hangs.py"
AT = 3


def line(mark: str) -> str:
    """`hangs.py:88` of the line with a mark."""
    lines = HANGS.read_text().splitlines()
    return f"hangs.py:{next(n for n, text in enumerate(lines, 1) if text.endswith(f'# HERE {mark}'))}"


def hang(job: FtJob, how: str, *options: str, rank: int = 1, ranks: int = 2) -> dict[str, Any]:
    """The incident of a job in which a rank hangs so; it did. One life is enough to see that."""
    job.start(
        *("--hang-timeout", "2s", "--startup-timeout", "10s", "--grace", "1s", "--max-hang-restarts", "0", *options),
        script=HANGS, args=(how, str(rank), str(AT)), ranks=ranks, env={"GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert job.wait() == 1, job.stderr
    assert f"{how} {rank}" in (job.home / "fired").read_text().splitlines()
    [incident] = job.events("incident")
    assert incident["kind"] == "hang", incident
    return incident


CASES = {
    "sleep": rf"it sleeps at {line('sleep')} \(in <lambda>\)",
    "spin": r"it runs at hangs.py:\d+ \(in spin\) \(\d+% of a processor\)",
    "stop": rf"it was stopped at {line('stop')}",
    "gil": rf"it is in C code that keeps the interpreter's lock \(GIL\), called at {line('the GIL')}",
    "lock": rf"it waits for a lock or for another thread at {line('the lock')} \(in lock_and_collective\), which its"
    rf" thread may hold that is in \w+ #\d+ at {line('the holder')}",
    "pipe": rf"it is in read of pipe:\[\d+\] at {line('the pipe')}",
    "loader": rf"it waits for its data loader at {line('the loader')}, whose worker with pid \d+ is at"
    rf" {line('in the worker')} \(in __getitem__\)",
    "leave": rf"it waits for a lock or for another thread at {line('after the loop')}",
}


@pytest.mark.parametrize("how", CASES)
def test_who_where_and_who_waits(job: FtJob, how: str) -> None:
    incident = hang(job, how)
    assert incident["rank"] == 1
    assert re.search(CASES[how], incident["sentence"]), incident["sentence"]
    assert f"rank 0 waits for it in all_reduce #{AT + 1} at {line('all_reduce')}" in incident["sentence"]
    job.assert_clean()


def assert_disagree(said: str, places: dict[int, str], why: str) -> None:
    """Both are to blame: whichever is named, it is where it is, and so is the other."""
    assert said.startswith(("rank 0 ", "rank 1 "))
    for one, other in ((0, 1), (1, 0)):
        if said.startswith(f"rank {one} "):
            assert f"; it waits in {places[one]}, but rank {other} is in {places[other]}: {why}" in said


def test_the_ranks_are_in_different_collectives(job: FtJob) -> None:
    said = hang(job, "mismatch")["sentence"]
    places = {0: f"all_reduce #{AT + 1} at {line('all_reduce')}", 1: f"barrier #{AT + 1} at {line('the hang')}"}
    assert_disagree(said, places, "they disagree on their collectives")


def test_the_ranks_take_their_groups_in_different_orders(job: FtJob) -> None:
    said = hang(job, "groups")["sentence"]
    at = f"at {line('the groups')} (in other_group)"
    places = {0: f"all_reduce #1 of group 2 {at}", 1: f"all_reduce #1 of group 1 {at}"}
    assert_disagree(said, places, "they take their groups in different orders")


def test_all_are_in_the_same_collective(job: FtJob) -> None:
    said = hang(job, "cut")["sentence"]
    assert re.search(
        rf"it waits in all_reduce #\d+ at {line('all_reduce')}, and so does rank \d: all have entered it", said
    ), said


def test_a_rank_that_never_comes(job: FtJob) -> None:
    incident = hang(job, "startup", "--startup-timeout", "6s")
    assert incident["rank"] == 1
    assert f"it sleeps at {line('startup')}" in incident["sentence"]
    assert f"rank 0 waits for it in init_process_group at {line('init')}" in incident["sentence"]


def test_what_is_left(job: FtJob) -> None:
    """The files of both ranks, private; the report and the terminal say where."""
    incident = hang(job, "sleep")
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
    assert (main["state"], main["syscall"]) == ("S", "clock_nanosleep")
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


def test_told_to_stop_in_the_middle_of_it(job: FtJob) -> None:
    """No more of it: the job stops as it would have otherwise."""
    job.start("--hang-timeout", "2s", "--grace", "4s", script=HANGS, args=("sleep", "1", str(AT)))
    job.wait_event("hang_seen")
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    assert job.events("job_stopped")[0]["step"] == AT
    job.assert_clean()
