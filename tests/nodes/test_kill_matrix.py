"""The kill matrix: every process of a job of several machines, and every machine, broken in every way at every moment.

Two machines have a rank each, a third one stands by. Processes are killed and stopped. A machine is lost, stopped, cut
off for ever or for a second, not heard, or loses packets; a link belongs to a machine, so no process alone can have it
cut. At its moment the job is held up by its script, or by its saver, until the fault has fired.

A cell passes where the job ends in time, all agents that live end with the same code, every state is the undisturbed
run's, every checkpoint is whole, and nothing is left. A job that was told to stop ends with 75, and is started again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.kill_cells import MACHINES, MOMENTS, NODES, CellJob, disposed, hit
from tests.support.machines import Machine, Machines, made
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PROCESSES = ("rank", "saver", "node's saver", "warm parent", "agent", "head")
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
LINKS: dict[str, Callable[[Machine], None]] = {
    "lost": Machine.lose,
    "stopped": Machine.freeze,
    "cut off": Machine.cut,
    "cut off for a second": Machine.cut,
    "not heard": Machine.mute,
    "lossy": lambda machine: machine.lossy(5),
}


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Two for the ranks, and one that stands by."""
    with made(MACHINES) as all_of_them:
        yield all_of_them


def finish(job: CellJob, moment: str, gone: set[int]) -> None:
    """The disturbed job ends as it must, and is started again where it was told to stop. gone: broken agents."""
    expected = 75 if moment == "stop" else 0
    living = [number for number in range(MACHINES) if number not in gone]
    assert job.codes(*living) == {expected}, job.transcript()
    job.assert_whole_checkpoints()
    for machine in job.made.all:
        machine.mend()
        machine.thaw()
    if gone:
        job.codes(*gone)
    if moment == "stop":
        job.start_all()
        assert job.codes(*range(NODES)) == {0}, job.transcript()
    job.assert_right_states()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", SIGNALS)
@pytest.mark.parametrize("what", PROCESSES)
def test_a_process(what: str, how: str, moment: str, machines: Machines, tmp_path: Path) -> None:
    with disposed(CellJob(machines, tmp_path / "job", moment, warm=what == "warm parent")) as job:
        job.reach()
        pid = job.victim(what)
        assert job.is_held
        hit(pid, SIGNALS[how])
        job.go_on()
        finish(job, moment, {1} if what == "agent" else set())
        job.assert_nothing_left(*machines.all, but=machines[1] if (what, how) == ("agent", "killed") else None)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", LINKS)
@pytest.mark.parametrize("number", [1, 0], ids=["machine 1", "the head's machine"])
def test_a_machine(number: int, how: str, moment: str, machines: Machines, tmp_path: Path) -> None:
    with disposed(CellJob(machines, tmp_path / "job", moment, warm=False)) as job:
        job.reach()
        assert job.is_held
        LINKS[how](machines[number])
        job.go_on()
        if how == "cut off for a second":
            time.sleep(1.0)  # the fault itself
            machines[number].mend()
        if how in ("not heard", "lossy"):
            wait_for(machines[number].filtered, "packets at the filter")
        finish(job, moment, {number} if how in ("lost", "stopped") else set())
        job.assert_nothing_left(*machines.all, but=machines[number] if how == "lost" else None)
