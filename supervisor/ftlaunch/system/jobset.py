"""What JobSet, which starts the pods of a job in Kubernetes, says of itself."""

from __future__ import annotations

from collections.abc import Mapping

_RESTART_ATTEMPT = "JOBSET_RESTART_ATTEMPT"
"""set by manifests from the annotation `jobset.sigs.k8s.io/restart-attempt` of the pod"""
_LONGEST = 9  # digits


def restart_attempt(environ: Mapping[str, str]) -> int | None:
    """Return how often JobSet has started all pods again; None where JobSet does not say."""
    told = environ.get(_RESTART_ATTEMPT, "")
    return int(told) if told.isascii() and told.isdecimal() and len(told) <= _LONGEST else None
