"""The checks that take milliseconds and start no process; an agent makes them before its node joins a job."""

from __future__ import annotations

import os

from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.resources import count_gpus
from ftlaunch.tools.preflight import machine, rules
from ftlaunch.tools.preflight.rules import Check
from ftlaunch_contract.protocol import memory_root


def quick(spec: JobSpec) -> list[Check]:
    """Check memory, /dev/shm and limits."""
    gpus = count_gpus({**os.environ, **spec.launch.env})
    open_files, locked_memory = machine.limits()
    return [
        rules.memory(machine.free_memory(), spec.launch.nproc),
        _shared_memory(spec.launch.nproc),
        rules.limits(open_files, locked_memory, gpus > 0),
    ]


def warnings(spec: JobSpec) -> list[str]:
    """Return a clause for each quick check that is not ok: what was found, and what to do."""
    return [f"{check.name}: {check.found}: {check.advice}" for check in quick(spec) if check.status in ("warn", "bad")]


def _shared_memory(nproc: int) -> Check:
    root = machine.nearest(memory_root(os.getuid()))
    if not os.access(root, os.W_OK | os.X_OK):
        return Check(rules.SHM, "bad", f"no permission to write in {root}", "pages and snapshots lie there")
    return rules.shared_memory(machine.free_room(root), nproc)
