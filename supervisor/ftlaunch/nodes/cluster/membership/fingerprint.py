"""What all nodes of a job must agree on, in words: a node that was started for anything else is turned away. Pure."""

from __future__ import annotations

import hashlib

from ftlaunch.spec import shown
from ftlaunch.spec.job_spec import JobSpec

_LONGEST = 400  # characters


def job_of(spec: JobSpec) -> str:
    """Of a spec as a node has it; what is cut off of a long command counts by its digest."""
    command = " ".join([spec.launch.target, *spec.launch.args])
    nodes = shown.node_range(spec.nodes.least, spec.nodes.most)
    whole = f"{spec.job_id}: {nodes} nodes of {spec.launch.nproc} ranks, {command}"
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[:_LONGEST]}... (sha256 {hashlib.sha256(whole.encode()).hexdigest()[:16]})"
