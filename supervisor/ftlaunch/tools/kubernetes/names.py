"""Makes names and quantities that Kubernetes allows. Pure."""

from __future__ import annotations

import hashlib
import re

_MAX_LABEL = 63  # characters of a DNS label, RFC 1123
_HASH_DIGITS = 6  # digits of the hash that keeps two shortened job ids apart


def label_of(job_id: str, pods: int) -> str:
    """Make a DNS label from a job id, short enough that the names of all pods are DNS labels, too.

    The label begins with a letter, as the name of a Service must.

    Args:
        job_id: the job id.
        pods: number of pods of the job.
    """
    label = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9]", "-", job_id.lower())).strip("-")
    if not label or not label[0].isalpha():
        label = f"job-{label}".rstrip("-")
    room = _MAX_LABEL - len(f"-node-{pods}-{pods}-abcde")  # the longest name: of a pod of a JobSet, with its random end
    if len(label) <= room:
        return label
    digits = hashlib.sha256(job_id.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{label[: room - _HASH_DIGITS - 1].rstrip('-')}-{digits}"


def quantity(size: float) -> str:
    """Format a number of bytes as a Kubernetes quantity: 8Gi, 512Mi, 1000."""
    count = int(size)
    for unit, factor in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)
