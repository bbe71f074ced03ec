"""The kinds of causes that there are: those of the fault rules, and those that the supervisor finds without a rule."""

from __future__ import annotations

from collections.abc import Iterable

from ftlaunch.policy.fault_rules import HOWS, UNKNOWN, FaultRule

DISK = "disk"
DIVERGENCE = "divergence"
INTERNAL = "internal"
NODE_LOST = "node-lost"
NUMERICAL = "numerical"
RESUME = "resume"
RESUME_DIFFERS = "resume-differs"
SLOW = "slow"
OF_THE_MACHINE = frozenset(
    {
        "comm", "comm-timeout", DISK, "gpu", "gpu-memory", "hang", "host-memory", "killed", NODE_LOST,
        "port", "preempted", SLOW, "spawn",
    }
)  # fmt: skip
"""kinds of failures that may stay away on other machines, or at another time, however often they came here"""
OF_THE_NUMBERS = frozenset({DIVERGENCE, NUMERICAL, RESUME_DIFFERS})
"""kinds of failures that somebody has to look at before the job is started again"""
WITHOUT_RULE = frozenset(
    {DISK, DIVERGENCE, INTERNAL, NODE_LOST, NUMERICAL, RESUME, RESUME_DIFFERS, SLOW, UNKNOWN.kind, *HOWS}
)


def kinds(rules: Iterable[FaultRule], own: Iterable[str] = ()) -> frozenset[str]:
    """Every kind that an incident of a job with these rules can have. own: classes of further rules."""
    return WITHOUT_RULE | {rule.kind for rule in rules} | frozenset(own)
