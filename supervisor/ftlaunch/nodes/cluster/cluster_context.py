"""The settings, callbacks and objects that the head gives to the code about its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ftlaunch.checkpoints.stores.load_note import LoadNote
from ftlaunch.nodes.cluster.head_store import HeadStore
from ftlaunch.nodes.cluster.membership.facts import NodeFacts
from ftlaunch.nodes.cluster.membership.fences import Probe
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.membership.voting import Voting
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.unshared_nodes import UnsharedNodes
from ftlaunch.reporting.events.base import JobEvent


@dataclass(frozen=True)
class ClusterContext:
    """What the classes about nodes share: settings of the job, callbacks into the head, and mirrors of the pages."""

    pages: ClusterPages
    """mirrors of the pages of all ranks"""
    least: int
    """the least number of nodes of the job"""
    most: int
    """the largest number of nodes of the job"""
    last_call_seconds: float
    """seconds for which a job with its least number of nodes waits for more before it begins"""
    ranks_each: int
    """the number of ranks of each node"""
    job: str
    """the fingerprint that all nodes must share"""
    timeout_seconds: float
    """seconds of silence after which a node counts as lost"""
    wait_seconds: float
    """seconds that the job waits for nodes that it needs"""
    clock: Callable[[], float]
    """monotonic seconds"""
    say: Callable[[str], None]
    """writes a sentence to the terminal"""
    stop: Callable[[str], None]
    """asks the job to stop, with the reason"""
    hurry: Callable[[], None]
    """asks a job that is stopping to do so faster"""
    pause: Callable[[], None]
    """asks all ranks to stop at one step, so that the nodes can change"""
    make_probe: Callable[[str, int], Probe]
    """makes the probe that finds out whether an agent has ended, for its address and its `probe` port"""
    plan: Plan | None
    """the plan of a head that has died, whose attempt is adopted if nodes report that its ranks run on; else None"""
    run: str
    """names this life of the job if there is no plan"""
    begun: Callable[[str, int], None]
    """called with the run and the number of each attempt before the ranks are started"""
    facts: NodeFacts
    """the facts of the head's own node"""
    machines: IsolatedMachines
    """counts the failures of each machine"""
    word: str
    """the random word in the directories that all nodes must share"""
    address: str
    """the address at which this head listens"""
    term: int
    """the term of this head; a head with a higher one replaces it"""
    leads: Callable[[], bool]
    """returns whether storage has shown lately that this head still leads"""
    unshared: UnsharedNodes
    """the nodes that do not share the head's directories"""
    store: HeadStore | None = None
    """the checkpoint store of the job; None if there is none"""
    load_address: str | None = None
    """the address of the checkpoint with which the job begins; None: there is none"""
    load_note: LoadNote | None = None
    """what the head has brought from there; None: nothing"""
    copies: int | Literal["auto"] = 0
    """steps between copies of snapshots to other nodes; 0 for no copies"""
    report: Callable[[JobEvent], None] = lambda event: None
    """writes events about nodes to the journal"""
    may_be_beside: bool = False
    """whether the replaced head, on another machine, may still live and have begun an attempt that the plan lacks"""
    give_way: Callable[[str, int, int], None] = lambda address, port, term: None
    """called with address, port and term of a head that says that the nodes have elected it elsewhere"""
    voting: Voting | None = None
    """changes the voters that elect the head; None if the nodes of this job do not elect it"""
    seed: int = 0
    """the seed of the job for ranks that set no seed of their own"""
