"""The checks that take milliseconds and start no process: a node makes them before it takes part in a job."""

from __future__ import annotations

import os

from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.resources import count_gpus
from ftlaunch.tools.preflight import machine, rules
from ftlaunch.tools.preflight.rules import Check
from ftlaunch_contract.protocol import memory_root


def quick(spec: JobSpec) -> list[Check]:
    """Memory, /dev/shm and limits."""
    gpus = count_gpus({**os.environ, **spec.launch.env})
    return [
        rules.memory(machine.free_memory(), spec.launch.nproc),
        _shared_memory(spec.launch.nproc),
        rules.limits(*machine.limits(), gpus > 0),
    ]


def warnings(spec: JobSpec) -> list[str]:
    """What is not as it should be, and what to do about it: a clause each."""
    return [f"{one.name}: {one.found}: {one.advice}" for one in quick(spec) if one.status in ("warn", "bad")]


def _shared_memory(nproc: int) -> Check:
    root = machine.nearest(memory_root(os.getuid()))
    if not os.access(root, os.W_OK | os.X_OK):
        return Check(rules.SHM, "bad", f"no permission to write in {root}", "pages and snapshots lie there")
    return rules.shared_memory(machine.free_room(root), nproc)
