"""The head's side of a job of two nodes with two ranks each: agents that say what a test says, a clock that jumps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ftlaunch.nodes.cluster.cluster import Around, Cluster
from ftlaunch.nodes.cluster.membership.facts import NodeFacts
from ftlaunch.nodes.cluster.membership.fences import PortProbe
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.ranks.rank import Rank
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.pages.page import Page, create_page, page_path
from tests.support.fakes.clock import Clock
from tests.support.fakes.files import FilesInPlace

JOB = "the job"
WAIT, TIMEOUT, LAST_CALL = 60.0, 2.0, 30.0
FACTS = NodeFacts("0.1", "3.11.4", "2.13.0", "abc", "here/1")


class FakeAgent:
    """An agent at the other end of a connection; `told` is what the head has sent to it."""

    def __init__(self, head: Head, number: int) -> None:
        self.head, self.peer = head, f"10.0.0.{number}:{4000 + number}"
        self.on_message: Any = None
        self.on_end: Any = None
        self.told: list[dict[str, Any]] = []
        self.closed = False
        self.beats = 0

    # --- Connection -------------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        """Take a message of the head."""
        assert not self.closed
        self.told.append(message)

    def close(self) -> None:
        """The head has ended the connection."""
        self.closed = True

    # --- what a test does -------------------------------------------------------------------------------------

    def say(self, do: str, **fields: Any) -> None:
        """Send a message to the head."""
        assert not self.closed
        self.on_message({"do": do, **fields})

    def hello(self, **other: Any) -> None:
        """Say who it is. other: what is not as usual."""
        self.say("hello", **{**self.usual_hello(), **other})

    def usual_hello(self) -> dict[str, Any]:
        """The fields of the first message."""
        usual = {"job": JOB, "host": "here", "rank": -1, "probe": 1, "port": 29500, "held": [], "slots": {}}
        more = {"lineage": "", "running": {}, "facts": FACTS.as_dict(), "wall": time.time(), "warnings": []}
        more |= {"topology": "", "copier": {"port": 0, "lineage": "", "every": 0}}
        return {**usual, **more}

    def beat(self, words: list[Any] | None = None, **other: Any) -> None:
        """A sign of life."""
        self.beats += 1
        usual = {"number": self.beats, "lineage": self.head.cluster.reports.lineage, "now": self.head.clock()}
        self.say("beat", **{**usual, "words": words or [], "noted": [], "stopped": [], **other})

    def names(self) -> list[str]:
        """The names of what it was told."""
        return [message["do"] for message in self.told]

    def heard(self, do: str) -> dict[str, Any]:
        """The last message of a name."""
        return next(message for message in reversed(self.told) if message["do"] == do)


class Head:
    """What a head has of its nodes."""

    def __init__(
        self, home: Path, nodes: int = 2, each: int = 2, least: int = 0, plan: Plan | None = None
    ) -> None:  # fmt: skip
        """nodes: of the job, at most. least: the same at least; 0: so many, too. plan: what another head has left."""
        (home / "train.py").touch()
        (home / "mirrors").mkdir()
        flags = {"nproc_per_node": str(nodes * each), "run_dir": str(home / "run"), "job_id": "fake"}
        self.spec = resolve(str(home / "train.py"), [], flags, {})
        self.home, self.clock, self.pages = home, Clock(), ClusterPages(home / "mirrors", nodes * each)
        self.said: list[str] = []
        self.stops: list[str] = []
        self.hurried, self.paused, self.leads = 0, 0, True
        self.exited: list[int] = []
        self.begun: list[tuple[str, int]] = []
        self.machines = IsolatedMachines(2, home, FilesInPlace(), self.said.append)
        around = Around(
            self.pages, least or nodes, nodes, LAST_CALL, each, JOB, TIMEOUT, WAIT, self.clock, self.said.append,
            self.stops.append, self._hurry, self._pause, PortProbe, plan, "run",
            lambda run, attempt: self.begun.append((run, attempt)), FACTS,
            self.machines, "word", "10.0.0.1", 1, lambda: self.leads,
        )  # fmt: skip
        self.cluster = Cluster(around)
        self.agents: list[FakeAgent] = []

    def _hurry(self) -> None:
        self.hurried += 1

    def _pause(self) -> None:
        self.paused += 1

    def agent(self, *, ready: bool = True, **hello: Any) -> FakeAgent:
        """An agent that comes and says hello."""
        agent: Any = FakeAgent(self, len(self.agents))
        self.agents.append(agent)
        self.cluster.arrivals.accepted(agent)
        agent.hello(**hello)
        if ready and not agent.closed:
            agent.say("ready")
        made: FakeAgent = agent
        return made

    def attempt(self, number: int = 0) -> ClusterRanks:
        """Start an attempt."""
        told = self.spec, self.pages, self.cluster, self.clock, FilesInPlace(), number
        group = ClusterRanks(*told, self._exited)
        group.spawn()
        return group

    def running(self) -> ClusterRanks:
        """Two agents have come, and their ranks run."""
        for _ in range(2):
            self.agent()
        assert self.cluster.settled()
        group = self.attempt()
        for node, agent in enumerate(self.agents):
            pids = {str(rank): 100 + rank for rank in (2 * node, 2 * node + 1)}
            agent.say("started", attempt=0, pids=pids, log_from={})
        return group

    def _exited(self, rank: Rank) -> None:
        self.exited.append(rank.number)

    def page_of(self, rank: int) -> Page:
        """A page like that of a rank on its node."""
        path = page_path(self.home, rank)
        create_page(path)
        return Page(path)


def lost(group: ClusterRanks) -> dict[int, str]:
    """Rank -> why its node is lost."""
    return {evidence.rank: evidence.lost for evidence in group.failed(must_read=True) if evidence.lost}
