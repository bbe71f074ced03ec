"""Formats recovery.json for `ftctl recovery`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftlaunch.common.formatting import stretches
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.memory.restore_map import BEGINNING, OWN, STORAGE

RECOVERY = "recovery.json"
"""name of the file in a run dir that says where the ranks of the newest attempt take their state from"""
_WORDS = {"memory": "memory", "peer": "the memory of other nodes", "storage": "storage"}


def restore_lines(written: Mapping[str, Any]) -> list[str]:
    """Return the contents of recovery.json as lines for people.

    Args:
        written: the parsed file.

    Raises:
        KeyError: a field is missing.
        TypeError: a field has another type.
        ValueError: a field is no number.
    """
    step = int(written["step"])
    source = written["source"]
    who = f"attempt {int(written['attempt'])}" if written["done"] else "the next attempt"
    if source is None:
        begins = f"{who} begins at step 0"
    else:
        at = "" if step == NONE else f" at step {step}"
        begins = f"{who} resumes from {_WORDS.get(source, source)}{at}"
    lines = [begins if written["done"] else f"{begins}: planned; not all ranks have it yet"]
    for row in written["sources"]:
        lines.append(f"  {_who(row)}: {_where(row, written['replicas'])}")
    to = "brought to" if written["done"] else "to be brought to"
    for node in written["fetched"]:
        lines += [f"  {_supply(part)}, {to} node {node['place']}" for part in node["sources"]]
    return lines


def _supply(part: Mapping[str, Any]) -> str:
    """Say which node supplies a part of a lost rank's snapshot, and whose snapshot the part comes from."""
    whose = "a copy" if part["of"] == part["rank"] else f"of its replica, rank {part['of']}"
    return f"rank {part['rank']}, {part['group']}: {part['bytes']} bytes from node {part['node']}, {whose}"


def _who(row: Mapping[str, Any]) -> str:
    return f"rank{'' if _is_one(row) else 's'} {row['ranks']}"


def _is_one(row: Mapping[str, Any]) -> bool:
    return str(row["ranks"]).isdecimal()


def _where(row: Mapping[str, Any], replicas: Sequence[int]) -> str:
    """Say where the ranks of a row take their state from."""
    if row["from"] == STORAGE:
        return "storage: the newest checkpoint that verifies, or the one to begin with"
    if row["from"] == BEGINNING:
        return "nothing: the training begins"
    if row["from"] == OWN:
        return f"the memory of {'its' if _is_one(row) else 'their'} own node"
    keeper = "a node that stands by" if row["keeper"] is None else f"node {row['keeper']}"
    nodes = f"node{'' if len(replicas) == 1 else 's'} {stretches(replicas)}"
    alike = f"; what replicas hold alike from {nodes}" if replicas else ""
    copies = "its copy" if _is_one(row) else "their copies"
    return f"lost; {copies} from {keeper}{alike}"
