"""Runs all checks of a job, in the order in which the report shows them, and leaves nothing behind.

`check` runs on the main thread of `ftctl check`, or of `ftlaunch --check` before the job starts. Measurements are in
`machine`, `disk`, `kernel` and `ranks`; `rules` judges them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import processes
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.resources import count_gpus
from ftlaunch.tools.preflight import disk, kernel, machine, ranks, rules, view
from ftlaunch.tools.preflight.quick import quick
from ftlaunch.tools.preflight.rules import Check

RANKS_LIMIT_SECONDS = 120.0  # importing torch on a cold network disk takes its time
_DISK_LIMIT = 30.0


def check(spec: JobSpec, limit: float = RANKS_LIMIT_SECONDS) -> list[Check]:
    """Run all checks of a job on this machine.

    Args:
        spec: the job.
        limit: longest time in seconds of each of the two rounds of processes that the check starts.
    """
    processes.become_subreaper()
    helpers = HelperProcesses()
    gpus = count_gpus({**os.environ, **spec.launch.env})
    checks = [
        *quick(spec),
        *_disk(helpers, spec),
        rules.port(
            spec.launch.master_addr,
            spec.launch.master_port,
            machine.why_no_port(spec.launch.master_addr, spec.launch.master_port),
        ),
        rules.clock(time.time(), Path(__file__).stat().st_mtime, machine.clock_synchronised()),
        *kernel.checks(),
    ]
    interpreter_checks = _interpreter(helpers, spec, gpus=gpus, limit=limit, rest_fine=rules.could_run(checks))
    return [*interpreter_checks, *checks]


def say(checks: Sequence[Check], seconds: float) -> str:
    """Return the report as text. seconds: how long the checks took."""
    return "\n".join(view.lines(checks, seconds))


def _disk(helpers: HelperProcesses, spec: JobSpec) -> list[Check]:
    """Check disk and locks at the existing parents of the checkpoint directory and the run dir."""
    place = machine.nearest(spec.checkpoint_dir)
    run_dir = machine.nearest(spec.run_dir)
    facts = disk.ask(helpers, place, limit=_DISK_LIMIT, lockable=sorted({place, run_dir}))
    if not facts["error"]:
        facts["free"] = machine.free_room(place)
    return [rules.disk(facts, str(place)), rules.locks(facts)]


def _interpreter(helpers: HelperProcesses, spec: JobSpec, gpus: int, limit: float, rest_fine: bool) -> list[Check]:
    """Run the checks that the job's own interpreter answers: Python, torch, devices, ranks.

    Args:
        helpers: processes that survive the sweep of the ranks.
        spec: the job.
        gpus: GPUs installed and visible.
        limit: longest time in seconds of each round of processes.
        rest_fine: whether no other check is bad; otherwise ranks are not started.
    """
    if spec.launch.kind == "program":
        return [Check("python", "skip", "the job is a program of its own: torch and the ranks are not looked at")]
    facts = ranks.ask_facts(helpers, spec, limit)
    if facts.failures:
        return [
            Check("python", "bad", f"{spec.launch.python} {facts.failures[0]}", "give another `python` in the job spec")
        ]
    reported = facts.received[0]
    checks = [rules.python(reported), rules.torch(reported), rules.devices(reported, spec.launch.nproc, gpus)]
    if not (rest_fine and rules.could_run(checks)):
        return [*checks, Check("ranks", "skip", "not started, for what is bad elsewhere")]
    answers = ranks.ask_ranks(helpers, spec, limit)
    return checks + rules.ranks(answers.received, answers.failures, spec.launch.nproc)
