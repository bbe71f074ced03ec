"""What the nodes' part of the head works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ftlaunch.nodes.cluster.membership.facts import NodeFacts
from ftlaunch.nodes.cluster.membership.fences import Probe
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.reporting.events.base import JobEvent


@dataclass(frozen=True)
class Around:
    """What the nodes' part of the head works with."""

    pages: ClusterPages
    least: int
    most: int
    """nodes of the job: a number between these two"""
    last_call: float
    """seconds for which a job that has its least nodes waits for more before it begins"""
    ranks_each: int
    job: str
    """what all nodes must agree on"""
    timeout: float
    """seconds of silence after which a node counts as lost"""
    wait: float
    """seconds that the job waits for the nodes it needs"""
    clock: Callable[[], float]
    say: Callable[[str], None]
    stop: Callable[[str], None]
    """ask the job to stop, and why"""
    hurry: Callable[[], None]
    pause: Callable[[], None]
    """ask all ranks to stop at one step, so that the nodes can change"""
    make_probe: Callable[[str, int], Probe]
    """asks whether an agent has ended, by its address and the port that it has told"""
    plan: Plan | None
    """of a head that has died: its attempt is taken up where nodes say that its ranks run on"""
    run: str
    """names this life of the job, where there is no plan"""
    begun: Callable[[str, int], None]
    """told the run and the number of each attempt before its ranks are started"""
    facts: NodeFacts
    """of the head's own node"""
    machines: IsolatedMachines
    word: str
    """lies in the directories that all nodes must share"""
    address: str
    """at which this head listens"""
    term: int
    """of this head: a higher one has taken its place"""
    leads: Callable[[], bool]
    """whether the storage has seen this head's sign of life lately"""
    copies: int | Literal["auto"] = 0
    """steps between copies of snapshots to other nodes; 0 is off"""
    tell: Callable[[JobEvent], None] = lambda event: None
    """tells the journal of nodes that come, get places and leave"""
    may_be_beside: bool = False
    """whether the head before, on another machine, may live on until it learns of this one; it may have begun an
    attempt of which the plan did not tell yet"""
    seed: int = 0
    """of the job, for what its ranks draw without a seed of their own"""
