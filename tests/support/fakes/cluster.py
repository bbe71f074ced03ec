"""The head's side of a job of two nodes with two ranks each, without processes.

The clock jumps, and agents say what tests say.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ftlaunch.nodes.cluster.cluster import Cluster, ClusterContext
from ftlaunch.nodes.cluster.head_store import HeadStore
from ftlaunch.nodes.cluster.membership.facts import NodeFacts
from ftlaunch.nodes.cluster.membership.fences import PortProbe
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.nodes.cluster.unshared_nodes import UnsharedNodes
from ftlaunch.ranks.rank import Rank
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.pages.page import Page, create_page, page_path
from tests.support.fakes.clock import Clock
from tests.support.fakes.files import AllFilesInPlace, FilesInPlace

JOB = "the job"
WAIT = 60.0  # seconds
TIMEOUT = 2.0  # seconds
LAST_CALL = 30.0  # seconds
FACTS = NodeFacts(ftlaunch="0.1", python="3.11.4", torch="2.13.0", script="abc", machine="here/1")


class FakeAgent:
    """An agent, as the other end of a connection of the head; `received` holds the messages of the head."""

    def __init__(self, head: Head, number: int) -> None:
        self.head = head
        self.peer = f"10.0.0.{number}:{4000 + number}"
        self.on_message: Any = None
        self.on_end: Any = None
        self.received: list[dict[str, Any]] = []
        self.closed = False
        self.queued = 0
        self.beats = 0

    # --- Connection -------------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        """Keep a message of the head."""
        assert not self.closed
        self.received.append(message)

    def close(self) -> None:
        """Note that the head has ended the connection."""
        self.closed = True

    # --- what a test does -------------------------------------------------------------------------------------

    def say(self, do: str, **fields: Any) -> None:
        """Send a message to the head."""
        assert not self.closed
        self.on_message({"do": do, **fields})

    def hello(self, **other: Any) -> None:
        """Send the first message. other: fields that differ from the usual ones."""
        self.say("hello", **{**self.usual_hello(), **other})

    def usual_hello(self) -> dict[str, Any]:
        """Return the usual fields of the first message."""
        return {
            "job": JOB,
            "host": "here",
            "rank": -1,
            "probe": 1,
            "port": 29500,
            "held": [],
            "slots": {},
            "lineage": "",
            "running": {},
            "facts": FACTS.as_dict(),
            "wall": time.time(),
            "warnings": [],
            "topology": "",
            "copier": {"port": 0, "lineage": "", "every": 0},
        }

    def beat(self, words: list[Any] | None = None, **other: Any) -> None:
        """Send a beat. words: changes of the ranks' pages. other: fields that differ from the usual ones."""
        self.beats += 1
        usual = {"number": self.beats, "lineage": self.head.cluster.reports.lineage, "now": self.head.clock()}
        self.say("beat", **{**usual, "words": words or [], "noted": [], "stopped": [], **other})

    def names(self) -> list[str]:
        """Return the names of the messages of the head."""
        return [message["do"] for message in self.received]

    def newest(self, do: str) -> dict[str, Any]:
        """Return the newest message of a name."""
        return next(message for message in reversed(self.received) if message["do"] == do)


class Head:
    """A head without a supervisor: a real `Cluster`, whose calls to the job are noted."""

    def __init__(
        self, home: Path, nodes: int = 2, each: int = 2, least: int = 0, plan: Plan | None = None,
        store: HeadStore | None = None,
    ) -> None:  # fmt: skip
        """Make the head.

        Args:
            home: a directory for files.
            nodes: the largest number of nodes of the job.
            each: ranks of each node.
            least: the least number of nodes; 0 is `nodes`.
            plan: the plan that an earlier head has left.
            store: the checkpoint store of the job.
        """
        (home / "train.py").touch()
        (home / "mirrors").mkdir()
        flags = {"nproc_per_node": str(nodes * each), "run_dir": str(home / "run"), "job_id": "fake"}
        self.spec = resolve(str(home / "train.py"), [], flags, {})
        self.home = home
        self.clock = Clock()
        self.pages = ClusterPages(home / "mirrors", nodes * each)
        self.said: list[str] = []
        self.stops: list[str] = []
        self.hurried = 0
        self.paused = 0
        self.leads = True
        self.exited: list[int] = []
        self.begun: list[tuple[str, int]] = []
        self.machines = IsolatedMachines(2, home, FilesInPlace(), self.said.append)
        cluster_context = ClusterContext(
            pages=self.pages,
            least=least or nodes,
            most=nodes,
            last_call_seconds=LAST_CALL,
            ranks_each=each,
            job=JOB,
            timeout_seconds=TIMEOUT,
            wait_seconds=WAIT,
            clock=self.clock,
            say=self.said.append,
            stop=self.stops.append,
            hurry=self._hurry,
            pause=self._pause,
            make_probe=PortProbe,
            plan=plan,
            store=store,
            run="run",
            begun=lambda run, attempt: self.begun.append((run, attempt)),
            facts=FACTS,
            machines=self.machines,
            word="word",
            address="10.0.0.1",
            term=1,
            leads=lambda: self.leads,
            unshared=UnsharedNodes(self.spec, AllFilesInPlace(home), self.clock, self.said.append, may_move=False),
        )
        self.cluster = Cluster(cluster_context)
        self.agents: list[FakeAgent] = []

    def _hurry(self) -> None:
        self.hurried += 1

    def _pause(self) -> None:
        self.paused += 1

    def agent(self, *, ready: bool = True, **hello: Any) -> FakeAgent:
        """Have an agent connect and say hello.

        Args:
            ready: whether the agent is ready for ranks, too.
            hello: fields of the first message that differ from the usual ones.
        """
        agent: Any = FakeAgent(self, len(self.agents))
        self.agents.append(agent)
        self.cluster.arrivals.accepted(agent)
        agent.hello(**hello)
        if ready and not agent.closed:
            agent.say("ready", apart=[], journal=[])
        made: FakeAgent = agent
        return made

    def attempt(self, number: int = 0) -> ClusterRanks:
        """Start the ranks of an attempt; return their group."""
        group = ClusterRanks(
            spec=self.spec,
            pages=self.pages,
            nodes=self.cluster,
            clock=self.clock,
            files=FilesInPlace(),
            attempt=number,
            exited=self._exited,
        )
        group.spawn()
        return group

    def running(self) -> ClusterRanks:
        """Have two agents come, and start the first attempt on them; return its group."""
        for _ in range(2):
            self.agent()
        assert self.cluster.is_settled()
        group = self.attempt()
        for node, agent in enumerate(self.agents):
            pids = {str(rank): 100 + rank for rank in (2 * node, 2 * node + 1)}
            agent.say("started", attempt=0, pids=pids, log_from={})
        return group

    def _exited(self, rank: Rank) -> None:
        self.exited.append(rank.number)

    def page_of(self, rank: int) -> Page:
        """Return a page like the one that a rank has on its own node."""
        path = page_path(self.home, rank)
        create_page(path)
        return Page(path)


def lost(group: ClusterRanks) -> dict[int, str]:
    """Return the ranks whose nodes are lost, each with the reason."""
    return {evidence.rank: evidence.lost for evidence in group.failed(must_read=True) if evidence.lost}
