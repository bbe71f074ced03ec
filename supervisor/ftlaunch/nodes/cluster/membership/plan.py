"""What a head must know to take up the attempt of a head that has died: kept in the run dir, which all nodes share."""

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
    """Of the newest attempt."""

    run: str
    """names the life of the job in which the attempts are counted"""
    attempt: int
    every: int
    """steps between snapshots, or 0"""
    budget: Budget
    nodes: int

    @property
    def lineage(self) -> str:
        """What the nodes of this attempt call it."""
        return lineage_of(self.run, self.attempt, self.nodes)


def write(run_dir: Path, plan: Plan) -> None:
    """Replace the plan. Raises OSError."""
    atomic.replace_durable(run_dir / NAME, json.dumps(asdict(plan)).encode())


def read(run_dir: Path) -> Plan | None:
    """The plan; None where there is none, or none that can be read."""
    try:
        told = untrusted_json.mapping(untrusted_json.parse(read_regular(run_dir / NAME)), "it")
        budget = dict(untrusted_json.mapping(told["budget"], "`budget`"))
        limits = RestartLimits(**untrusted_json.mapping(budget.pop("limits"), "`limits`"))
        spent = {name: tuple(value) if isinstance(value, list) else value for name, value in budget.items()}
        numbers = {name: untrusted_json.whole(told[name], name) for name in ("attempt", "every", "nodes")}
        return Plan(run=untrusted_json.text(told["run"], "`run`"), budget=Budget(limits, **_known(spent)), **numbers)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(Budget)}
    return {name: value for name, value in fields.items() if name in names}


def forget(run_dir: Path) -> None:
    """The job is over: nobody is to take anything up. Raises OSError."""
    (run_dir / NAME).unlink(missing_ok=True)
