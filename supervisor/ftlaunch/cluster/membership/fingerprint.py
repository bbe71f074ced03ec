"""What all nodes of a job must agree on, in words: a node that was started for anything else is turned away. Pure."""

from __future__ import annotations

from ftlaunch.spec import shown
from ftlaunch.spec.job_spec import JobSpec

_LONGEST = 400  # characters


def job_of(spec: JobSpec) -> str:
    """Of a spec as a node has it."""
    command = " ".join([spec.launch.target, *spec.launch.args])
    nodes = shown.node_range(spec.nodes.least, spec.nodes.most)
    return f"{spec.job_id}: {nodes} nodes of {spec.launch.nproc} ranks, {command}"[:_LONGEST]
