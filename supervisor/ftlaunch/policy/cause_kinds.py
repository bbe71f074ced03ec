"""The kinds of failures, and what is known of each kind. Pure.

To add a failure that the supervisor itself detects, add a line to KINDS, and create a `Cause` with a sentence where
the failure is detected. A line that leaves a field out is an error when this module is imported.

A kind that fault rules recognise (configs/fault_rules.yaml, or rules of the job) needs no line. A kind of the built-in
rules has a line only if one of its fields differs from what holds for an unknown kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ftlaunch.policy.fault_rules import HOWS, UNKNOWN, FaultRule

COMM = "comm"
"""kind of a victim: a rank that failed because another rank had ended"""
COMM_TIMEOUT = "comm-timeout"
"""kind of a victim: a rank that failed because another rank did not enter a collective in time"""
DISK = "disk"
DIVERGENCE = "divergence"
EXCEPTION_AT_START = "exception-at-start"
HANG = "hang"
INTERNAL = "internal"
NODE_LOST = "node-lost"
NO_TORCH = "no-torch"
NUMERICAL = "numerical"
PORT = "port"
PREEMPTED = "preempted"
RESUME = "resume"
RESUME_DIFFERS = "resume-differs"
SECOND_LAUNCHER = "second-launcher"
SLOW = "slow"


@dataclass(frozen=True, kw_only=True)
class CauseKind:
    """What is known of one kind of failure. No field has a default, so that leaving one out is an error at import."""

    name: str
    """the class of an incident in the journal and the metrics"""
    by_supervisor: bool
    """whether the supervisor detects the failure without a fault rule"""
    blames_machine: bool
    """whether the failure counts against the machine on which it began; False if the script or nobody is to blame"""
    may_stay_away: bool
    """whether the job may run on other machines, or later, although the failure has repeated here"""
    needs_person: bool
    """whether a person must look at the failure before the job is started again"""


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
    CauseKind(name=HANG, by_supervisor=True, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name="host-memory", by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name=INTERNAL, by_supervisor=True, blames_machine=True, may_stay_away=False, needs_person=False),
    CauseKind(name="killed", by_supervisor=False, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name="left-early", by_supervisor=True, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name=NODE_LOST, by_supervisor=True, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name=NO_TORCH, by_supervisor=False, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name=NUMERICAL, by_supervisor=True, blames_machine=False, may_stay_away=False, needs_person=True),
    CauseKind(name=PORT, by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name=PREEMPTED, by_supervisor=False, blames_machine=False, may_stay_away=True, needs_person=False),
    CauseKind(name=RESUME, by_supervisor=True, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name=RESUME_DIFFERS, by_supervisor=True, blames_machine=False, may_stay_away=False, needs_person=True),
    CauseKind(name=SECOND_LAUNCHER, by_supervisor=False, blames_machine=False, may_stay_away=False, needs_person=False),
    CauseKind(name=SLOW, by_supervisor=True, blames_machine=True, may_stay_away=True, needs_person=False),
    CauseKind(name="spawn", by_supervisor=True, blames_machine=True, may_stay_away=True, needs_person=False),
)

WITHOUT_RULE = frozenset({UNKNOWN.kind, *(kind.name for kind in KINDS if kind.by_supervisor)})
"""kinds that an incident can have although no fault rule names them"""
NOT_THE_MACHINES = frozenset(kind.name for kind in KINDS if not kind.blames_machine)
"""kinds of failures that say nothing of the machine on which they began"""
OF_THE_MACHINE = frozenset(kind.name for kind in KINDS if kind.may_stay_away)
"""kinds of failures that another start, elsewhere or later, may not meet again"""
OF_THE_NUMBERS = frozenset(kind.name for kind in KINDS if kind.needs_person)
"""kinds of failures after which a person must look at the job's numbers"""

if missing := {*HOWS} - WITHOUT_RULE:
    raise TypeError(f"cannot know the failures {sorted(missing)} that rules call `how`: KINDS has no line for them")


def kinds(rules: Iterable[FaultRule], own: Iterable[str] = ()) -> frozenset[str]:
    """Return every kind that an incident of a job can have.

    Args:
        rules: the job's fault rules.
        own: classes of further rules.
    """
    return WITHOUT_RULE | {rule.kind for rule in rules} | frozenset(own)
