"""Names that Kubernetes allows, made from a job id. Pure."""

from __future__ import annotations

import hashlib
import re

_MOST = 63  # characters of a label of DNS, RFC 1123
_DIGITS = 6  # of the hash that keeps two long job ids apart


def label_of(job_id: str, pods: int) -> str:
    """A DNS label, made from a job id, from which the names of all pods of the job are labels, too.

    It begins with a letter, as the names of Services do.
    """
    label = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9]", "-", job_id.lower())).strip("-")
    if not label or not label[0].isalpha():
        label = f"job-{label}".rstrip("-")
    room = _MOST - len(f"-node-{pods}-{pods}-abcde")  # the longest name: of a pod of a JobSet, with its random end
    if len(label) <= room:
        return label
    digits = hashlib.sha256(job_id.encode()).hexdigest()[:_DIGITS]
    return f"{label[: room - _DIGITS - 1].rstrip('-')}-{digits}"


def quantity(size: float) -> str:
    """Bytes as Kubernetes writes them: 8Gi, 512Mi, 1000."""
    count = int(size)
    for unit, factor in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)
