"""Whether a checkpoint's numbers can be trusted: `health` in its metadata.json, a status and why.

The words are MindSpore's. `normal`: nothing was known against the checkpoint when it was committed. `abnormal`: its
losses or parameters were not finite, its loss was in a spike, or replicas differed. `unknown`: everything else.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NORMAL, ABNORMAL, UNKNOWN = "normal", "abnormal", "unknown"
KEY = "health"

Mark = Mapping[str, str]


def mark(status: str, why: str = "") -> dict[str, str]:
    """A mark, as JSON holds it."""
    return {"status": status, "why": why}


def of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The mark in a checkpoint's metadata, or in a snapshot's common.json; anything that is no mark is unknown."""
    found = metadata.get(KEY)
    if not isinstance(found, Mapping) or found.get("status") not in (NORMAL, ABNORMAL):
        why = found.get("why") if isinstance(found, Mapping) else None
        return mark(UNKNOWN, why if isinstance(why, str) else "nothing was noted of its numbers")
    return mark(str(found["status"]), str(found.get("why", "")))


def is_normal(metadata: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is marked healthy."""
    return of(metadata)["status"] == NORMAL


def join(marks: Sequence[Mark], abnormal: str = "") -> dict[str, str]:
    """The mark of a checkpoint, from the marks of all ranks' snapshots. abnormal: what else speaks against it."""
    if abnormal:
        return mark(ABNORMAL, abnormal)
    for status in (ABNORMAL, UNKNOWN):
        for rank, found in enumerate(marks):
            if found["status"] == status:
                return mark(status, f"rank {rank}: {found['why']}")
    return mark(NORMAL)
