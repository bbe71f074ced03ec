"""Describes, in words, what all nodes of a job must share. A node that was started for another job is refused. Pure."""

from __future__ import annotations

import hashlib

from ftlaunch.spec import shown
from ftlaunch.spec.job_spec import JobSpec

_LONGEST = 400  # characters


def job_of(spec: JobSpec) -> str:
    """Return the fingerprint of a job: its id, its size and its command.

    A long text is cut, and a digest of the whole text is added.
    """
    command = " ".join([spec.launch.target, *spec.launch.args])
    nodes = shown.node_range(spec.nodes.least, spec.nodes.most)
    whole = f"{spec.job_id}: {nodes} nodes of {spec.launch.nproc} ranks, {command}"
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[:_LONGEST]}... (sha256 {hashlib.sha256(whole.encode()).hexdigest()[:16]})"
