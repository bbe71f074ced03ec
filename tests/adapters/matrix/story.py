"""A job's story: its faults one after the other, and its command again wherever that has ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from tests.support.framework_results import logs
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

_STOPPED = 75
_ENDS_OF = {"term": _STOPPED, "stop": _STOPPED, "orphan": -signal.SIGKILL}
"""what the supervisor's process ends with, by how the fault ends the job"""
_PATIENCE = 170.0  # seconds


def live_through(job: FtJob, start: Callable[[], None], faults: Sequence[str]) -> None:
    """Start the job, again where a fault ended its supervisor, until it is done; asserts that all faults happened."""
    lives = [one.split() for one in faults if _how(one) in _ENDS_OF]
    for fault in lives:
        start()
        code = job.wait(_PATIENCE)
        assert code == _ENDS_OF[fault[3]], f"{code} with {job.fired()}:\n{job.stderr}{logs(job)}"
        wait_for(lambda: not carriers(job.tag), "the end of the ranks")
    start()
    assert job.wait(_PATIENCE) == 0, f"{job.fired()}\n{job.stderr}{logs(job)}"
    assert [line.rpartition(" ")[0] for line in job.fired()] == list(faults)


def assert_no_step_lost(job: FtJob, faults: Sequence[str]) -> None:
    """Each fault but those that ended the supervisor is one incident, and a resume lost a step at most, for its proof.

    Where the step under way proves nothing, the step before it is made again (--verify-resume).
    """
    within = [_how(one) for one in faults if _how(one) not in _ENDS_OF]
    told = [(event["kind"], event.get("rank"), event["cause"]) for event in job.events("incident")]
    assert [kind == "hang" for kind, *_ in told] == [how == "freeze" for how in within], told
    resumed = [event for event in job.events("resumed") if event["source"]]
    orphans = sum(_how(one) == "orphan" for one in faults)  # a supervisor may be killed before it tells of a resume
    assert len(faults) - orphans <= len(resumed) <= len(faults), resumed
    assert [event["steps_lost"] for event in resumed if (event["steps_lost"] or 0) > 1] == []
    assert job.events("resume_differs") == []


def _how(fault: str) -> str:
    return [*fault.split(), "kill"][3]
