"""Sentences that the supervisor shows on the terminal. Pure: facts in, lines out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ftlaunch.common.formatting import duration, lost_steps, size
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.policy.restart_policy import Budget
from ftlaunch.spec.job_spec import JobSpec

PREFIX = "ftlaunch: "
_DESCRIPTORS = 64
_DESCRIPTORS_A_RANK = 4
"""descriptors that a supervisor wants: it has about 20 open, 2 for each rank, and clients; the rest is for a restart"""


def opening(spec: JobSpec, run_dir: Path) -> str:
    """Return the first line of a run."""
    ranks = "1 rank" if spec.launch.nproc == 1 else f"{spec.launch.nproc} ranks"
    hang = "off" if spec.limits.hang_timeout is None else spec.limits.hang_timeout
    limit = duration(hang) if isinstance(hang, float) else hang
    count = spec.restarts.max_restarts
    restarts = "1 restart is" if count == 1 else f"{count or 'no'} restarts are"
    nodes = f"{spec.nodes.most} nodes, " if spec.nodes.several else ""
    return (
        f"job {spec.job_id} has {nodes}{ranks}; {restarts} allowed, the hang timeout is {limit};"
        f" the run dir is {run_dir}"
    )


def resumed(kind: str, step: int, lost: int | None, seconds: float | None) -> str:
    """Return the sentence for a resume, once all ranks have their state.

    Args:
        kind: where the state came from: memory, peer, storage and so on.
        step: the step of the state.
        lost: steps that must be repeated; None: unknown.
        seconds: time since the failure was seen; None: there was no failure.
    """
    after = "" if seconds is None else f", {duration(seconds)} after the failure was seen"
    cost = "" if lost is None else f", {lost_steps(lost, step)}"
    source = "the memory of other nodes" if kind == "peer" else kind
    return f"resumed at step {step} from {source}{cost}{after}"


def started_over(step: int, lost: int) -> str:
    """Return the sentence for a start without any state of ours, after steps were made and lost.

    Args:
        step: the step at which the script begins, which the script may have loaded by itself.
        lost: steps that are lost.
    """
    steps = "1 step is lost" if lost == 1 else f"{lost} steps are lost"
    if step > 0:
        return f"beginning again at step {step}, which the script has loaded by itself: {steps}"
    return f"beginning again: {steps}, for no step of all ranks is left in memory, and no checkpoint was saved"


def complete(step: int, since: str, checkpoint_dir: Path) -> str:
    """Return the last line of a run that found nothing left to train.

    Args:
        step: the last step of the job.
        since: when this step was committed, as a date and time.
        checkpoint_dir: the checkpoint directory.
    """
    what = f"nothing was left to train: the job is complete at step {step}, since {since} ({checkpoint_dir})"
    return f"done; {what}; to begin anew, give --fresh (its checkpoints are put aside) or another --run-dir"


def restarted_after_end(finished: str, checkpoint_dir: Path) -> str:
    """Return the sentence for a job that had finished, left no checkpoint, and starts from the beginning.

    Args:
        finished: when the job finished, as the journal says.
        checkpoint_dir: the checkpoint directory.
    """
    return f"this job finished before, at {finished}, and there is no checkpoint in {checkpoint_dir}: it begins anew"


def unsaved(step: int, why: str, memory: Path | None) -> str:
    """Return the last line of a job whose newest step could not be saved.

    Args:
        step: the newest step.
        why: why the step could not be saved.
        memory: the memory directory; None: the job has several nodes.
    """
    what = f"the last snapshot, of step {step}, could not be saved: {why}"
    same = "the same `ftlaunch` command goes on"
    if memory is None:
        return f"{what}; it stays in the memory of all nodes: {same} from it on these machines, until one is rebooted"
    return f"{what}; it stays in {memory}: {same} from it on this machine, until that is rebooted"


def unwritten(place: Path, waiting: int, silent: float) -> str:
    """Return the sentence for the end of a job with a file system that does not answer.

    Args:
        place: a directory on the file system.
        waiting: number of writes that wait.
        silent: seconds since the last answer.
    """
    since = f"its file system has not answered for {duration(silent)}"
    what = "1 write" if waiting == 1 else f"{waiting} writes"
    return f"cannot make {what} in {place}: {since}; the journal may lack its last events"


def failure(cause: Cause, budget: Budget, sentence: str, logs: Path, report: str, run_dir: Path) -> list[str]:
    """Return the last screen of a job that was given up.

    Args:
        cause: why the job has failed.
        budget: what was spent on restarts.
        sentence: the verdict, for people.
        logs: directory of the last attempt's logs.
        report: which step is saved and where, for people.
        run_dir: run dir of the job.
    """
    lines = ["", f"{PREFIX}the job has failed.", f"  what:   {cause.sentence}"]
    if cause.trace:
        lines += ["  trace:", *(f"    {line}" for line in cause.trace.splitlines())]
    lines += [
        f"  tried:  {budget.restarts + 1} {'attempt' if budget.restarts == 0 else 'attempts'} ({spent(budget)})",
        f"  why:    {sentence}",
        f"  state:  {report}",
        f"  logs:   {logs}",
        f"  next:   ftctl report {shlex.quote(str(run_dir))}",
    ]
    if cause.rank >= 0:
        lines.append(f"          ftctl logs {shlex.quote(str(run_dir))} --rank {cause.rank}")
    return lines


def limited_files(most: int | None) -> str:
    """Return a warning about a limit on the size of files; "" without a limit. most: the limit in bytes."""
    if most is None:
        return ""
    return (
        f"no file may be longer than {size(most)} here (`ulimit -f`): what a rank prints beyond that is lost, and"
        " larger snapshots and checkpoints cannot be written; `ulimit -f unlimited` lifts the limit"
    )


def descriptor_warning(most: int | None, ranks: int) -> str:
    """Return a warning about a low limit on open descriptors; "" if there are enough.

    Args:
        most: descriptors that this process may have open; None: there is no limit.
        ranks: number of ranks of the machine; for the head of several nodes, the number of nodes.
    """
    wanted = _DESCRIPTORS + _DESCRIPTORS_A_RANK * ranks
    if most is None or most >= wanted:
        return ""
    return (
        f"only {most} descriptors may be open here, and the limit cannot be raised (`ulimit -Hn`): this job wants"
        f" {wanted}; what finds none is said, and tried again, and ranks for which there are none cannot be started"
    )


def spent(budget: Budget) -> str:
    """Return how much of the restart budget is spent, and how many restarts cost nothing, as words."""
    used = len(budget.failures)
    hangs = len(budget.hangs)
    text = f"{used} of {budget.limits.restarts} restarts used"
    if budget.limits.hang_restarts is not None and hangs:
        text += f", and {hangs} of {budget.limits.hang_restarts} after hangs"
    free = budget.restarts - used - hangs
    return f"{text}; {free} more did not count" if free else text


def excerpt(rank: int, trace: str) -> Sequence[str]:
    """Return the lines of a failed rank's traceback, for a rank whose output is not on the terminal."""
    return [f"[{rank}] {line}" for line in trace.splitlines()]
