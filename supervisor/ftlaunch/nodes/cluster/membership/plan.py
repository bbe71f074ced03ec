"""The plan: what a new head must know to adopt the attempt of a dead one. A file in the shared run dir."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftlaunch.nodes.cluster.membership.lineage import lineage_of
from ftlaunch.policy.restart_policy import Budget, RestartLimits
from ftlaunch_contract.files import atomic, untrusted_json
from ftlaunch_contract.files.regular_file import read_regular

NAME = "plan.json"


@dataclass(frozen=True)
class Plan:
    """The plan of the newest attempt."""

    run: str
    """names the life of the job in which the attempts are counted"""
    attempt: int
    """the number of the attempt"""
    every: int
    """steps between snapshots, or 0"""
    budget: Budget
    """the limits of restarts, and what was spent of them"""
    nodes: int
    """the number of nodes of the attempt"""

    @property
    def lineage(self) -> str:
        """The lineage of the attempt."""
        return lineage_of(self.run, self.attempt, self.nodes)


def write(run_dir: Path, plan: Plan) -> None:
    """Replace the plan in a run dir. Raises OSError if it cannot be written."""
    atomic.replace_durable(run_dir / NAME, dump(plan))


def dump(plan: Plan) -> bytes:
    """Return the content of the file of a plan."""
    return json.dumps(asdict(plan)).encode()


def read(run_dir: Path) -> Plan | None:
    """Return the plan in a run dir, or None if there is no plan that can be read."""
    try:
        fields = untrusted_json.mapping(untrusted_json.parse(read_regular(run_dir / NAME)), "it")
        budget = dict(untrusted_json.mapping(fields["budget"], "`budget`"))
        limits = RestartLimits(**untrusted_json.mapping(budget.pop("limits"), "`limits`"))
        spent = {name: tuple(value) if isinstance(value, list) else value for name, value in budget.items()}
        numbers = {name: untrusted_json.whole(fields[name], name) for name in ("attempt", "every", "nodes")}
        return Plan(run=untrusted_json.text(fields["run"], "`run`"), budget=Budget(limits, **_known(spent)), **numbers)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that Budget has; another version may have written others."""
    names = {field.name for field in dataclasses.fields(Budget)}
    return {name: value for name, value in fields.items() if name in names}


def forget(run_dir: Path) -> None:
    """Remove the plan, because the job is over and nothing must be adopted. Raises OSError if it stays."""
    (run_dir / NAME).unlink(missing_ok=True)
