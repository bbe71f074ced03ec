"""The health of a checkpoint: the entry `health` in its metadata.json, which has a status and a reason.

The statuses are MindSpore's. `normal`: nothing was known against the checkpoint when it was committed. `abnormal`: its
losses or parameters were not finite, its loss was in a spike, or replicas differed. `unknown`: everything else.
Pure functions; standard library only.

The module is not part of metadata.py because code that uses the mark has variables called `metadata`, which would hide
the module, and because some folders ask for the mark and never read metadata.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NORMAL = "normal"
ABNORMAL = "abnormal"
UNKNOWN = "unknown"
KEY = "health"

Mark = Mapping[str, str]


def mark(status: str, why: str = "") -> dict[str, str]:
    """Return a mark in the form that JSON files hold."""
    return {"status": status, "why": why}


def of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the mark in a checkpoint's metadata or a snapshot's common.json. Anything malformed is `unknown`."""
    found = metadata.get(KEY)
    if not isinstance(found, Mapping) or found.get("status") not in (NORMAL, ABNORMAL):
        why = found.get("why") if isinstance(found, Mapping) else None
        return mark(UNKNOWN, why if isinstance(why, str) else "nothing was noted of its numbers")
    return mark(str(found["status"]), str(found.get("why", "")))


def is_normal(metadata: Mapping[str, Any]) -> bool:
    """Whether the checkpoint with this metadata is marked healthy."""
    return of(metadata)["status"] == NORMAL


def join(marks: Sequence[Mark], abnormal: str = "") -> dict[str, str]:
    """Return the mark of a checkpoint.

    Args:
        marks: those of all ranks' snapshots, rank by rank.
        abnormal: a reason besides the marks not to trust the checkpoint; empty for none.
    """
    if abnormal:
        return mark(ABNORMAL, abnormal)
    for status in (ABNORMAL, UNKNOWN):
        for rank, found in enumerate(marks):
            if found["status"] == status:
                return mark(status, f"rank {rank}: {found['why']}")
    return mark(NORMAL)
