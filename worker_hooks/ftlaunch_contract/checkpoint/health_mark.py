"""What is known of a checkpoint's numbers: `health` in its metadata.json, a status and why. Standard library only.

The words are MindSpore's: `normal` says that nothing was known against it when it was committed, `abnormal` that
its losses or parameters were no numbers, its loss was in a spike, or replicas differed; `unknown` is everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NORMAL, ABNORMAL, UNKNOWN = "normal", "abnormal", "unknown"
KEY = "health"

Mark = Mapping[str, str]


def mark(status: str, why: str = "") -> dict[str, str]:
    """One, JSON-ready."""
    return {"status": status, "why": why}


def of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """That of a checkpoint by its metadata, or of a snapshot by its common.json; what is not one is unknown."""
    found = metadata.get(KEY)
    if not isinstance(found, Mapping) or found.get("status") not in (NORMAL, ABNORMAL):
        why = found.get("why") if isinstance(found, Mapping) else None
        return mark(UNKNOWN, why if isinstance(why, str) else "nothing was noted of its numbers")
    return mark(str(found["status"]), str(found.get("why", "")))


def is_normal(metadata: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is marked healthy."""
    return of(metadata)["status"] == NORMAL


def join(marks: Sequence[Mark], abnormal: str = "") -> dict[str, str]:
    """The mark of a checkpoint, by those of all ranks' snapshots. abnormal: what is held against it besides."""
    if abnormal:
        return mark(ABNORMAL, abnormal)
    for status in (ABNORMAL, UNKNOWN):
        for rank, found in enumerate(marks):
            if found["status"] == status:
                return mark(status, f"rank {rank}: {found['why']}")
    return mark(NORMAL)
