"""Reads what JobSet, which starts the pods of a job in Kubernetes, puts into the environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_RESTART_ATTEMPT = "JOBSET_RESTART_ATTEMPT"
"""variable that manifests set from the pod's annotation `jobset.sigs.k8s.io/restart-attempt`"""
_LONGEST = 9  # digits


def restart_attempt(environ: Mapping[str, str]) -> int | None:
    """Return how often JobSet has restarted all pods; None if the environment does not say so."""
    text = environ.get(_RESTART_ATTEMPT, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST else None
