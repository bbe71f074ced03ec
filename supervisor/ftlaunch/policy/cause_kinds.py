"""The kinds of failures: those that the supervisor finds by itself, and what is known of each. Pure.

A failure that the supervisor is to see by itself gets its line in KINDS, the place that sees it (which makes a
`Cause`), and its sentence there. A line that leaves something out is an error when this module is imported.

Kinds of failures that rules recognise (configs/fault_rules.yaml, or rules of the job) need no line. Those of our own
rules have one where something here differs from what holds for an unknown kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ftlaunch.policy.fault_rules import HOWS, UNKNOWN, FaultRule

COMM = "comm"
"""of victims: ranks that failed because another rank had ended"""
COMM_TIMEOUT = "comm-timeout"
"""of victims: ranks that failed because another rank did not come to a collective"""
DISK = "disk"
DIVERGENCE = "divergence"
EXCEPTION_AT_START = "exception-at-start"
INTERNAL = "internal"
NODE_LOST = "node-lost"
NO_TORCH = "no-torch"
NUMERICAL = "numerical"
RESUME = "resume"
RESUME_DIFFERS = "resume-differs"
SECOND_LAUNCHER = "second-launcher"
SLOW = "slow"


@dataclass(frozen=True, kw_only=True)
class CauseKind:
    """What is known of one kind of failure. Each field is given for each kind: forgetting one is an error at import."""

    name: str
    """the class of an incident, as the journal and the metrics say it"""
    by_supervisor: bool
    """the supervisor finds it by itself, and no rule names it"""
    blames_machine: bool
    """it counts against the machine on which it began; not: it is the script's, or nobody knows whose"""
    may_stay_away: bool
    """it may stay away on other machines, or at another time, however often it came here"""
    needs_person: bool
    """somebody has to look at it before the job is started again"""


KINDS = (
    CauseKind(name=COMM, by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name=COMM_TIMEOUT, by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name=DISK, by_supervisor=True, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name=DIVERGENCE, by_supervisor=True, blames_machine=True, may_stay_away=False, needs_person=True),
    CauseKind(name="exception", by_supervisor=False, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(
        name=EXCEPTION_AT_START, by_supervisor=False, blames_machine=False, may_stay_away=False, needs_person=False
    ),
    CauseKind(name="exit", by_supervisor=False, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name="gpu", by_supervisor=False, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name="gpu-memory", by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name="hang", by_supervisor=True, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name="host-memory", by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name=INTERNAL, by_supervisor=True, blames_machine=True, may_stay_away=False, needs_person=False),
    CauseKind(name="killed", by_supervisor=False, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name="left-early", by_supervisor=True, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name=NODE_LOST, by_supervisor=True, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name=NO_TORCH, by_supervisor=False, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name=NUMERICAL, by_supervisor=True, blames_machine=False, may_stay_away=False, needs_person=True),
    CauseKind(name="port", by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name="preempted", by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name=RESUME, by_supervisor=True, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name=RESUME_DIFFERS, by_supervisor=True, blames_machine=False, may_stay_away=False, needs_person=True),
    CauseKind(name=SECOND_LAUNCHER, by_supervisor=False, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name=SLOW, by_supervisor=True, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name="spawn", by_supervisor=True, blames_machine=True, may_stay_away=True, needs_person=False),
)

WITHOUT_RULE = frozenset({UNKNOWN.kind, *(kind.name for kind in KINDS if kind.by_supervisor)})
NOT_THE_MACHINES = frozenset(kind.name for kind in KINDS if not kind.blames_machine)
"""kinds of failures that say nothing of the machine on which they began"""
OF_THE_MACHINE = frozenset(kind.name for kind in KINDS if kind.may_stay_away)
OF_THE_NUMBERS = frozenset(kind.name for kind in KINDS if kind.needs_person)

if missing := {*HOWS} - WITHOUT_RULE:
    raise TypeError(f"cannot know the failures {sorted(missing)} that rules call `how`: KINDS has no line for them")


def kinds(rules: Iterable[FaultRule], own: Iterable[str] = ()) -> frozenset[str]:
    """Return every kind that an incident of a job with these rules can have. own: classes of further rules."""
    return WITHOUT_RULE | {rule.kind for rule in rules} | frozenset(own)
