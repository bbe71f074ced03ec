"""The nodes of a job at its head: who is here, who has which place, what they say, who is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ftlaunch.channel.connection import Connection
from ftlaunch.cluster import asking, messages
from ftlaunch.cluster.around import Around
from ftlaunch.cluster.arrivals import Arrivals
from ftlaunch.cluster.asking import Answer
from ftlaunch.cluster.common_interval import CommonInterval
from ftlaunch.cluster.membership.fences import Fences
from ftlaunch.cluster.membership.greeting import Greeting
from ftlaunch.cluster.membership.roster import Member, Roster
from ftlaunch.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.cluster.node import Node
from ftlaunch.cluster.reports import Reports
from ftlaunch.ranks.view import front
from ftlaunch.spec.nodes.placement import Placement
from ftlaunch_contract.pages.page import NONE

FENCE = 1.0  # seconds after the node timeout in which an agent that is not heard ends its ranks
STALE_PART = 0.75
"""part of the node timeout after which a head that shows no sign of life is gone, and a node may start another"""
_SLACK = 1.1  # clocks of two machines may run so differently
_TAKEOVER = 1.2  # the same, where this head has begun before a node knew that it had lost the one before
_KILLED = -9
_LONGEST_REASON = 400  # characters
_TELL_HEARD = 0.25  # seconds between two words to a node that it is heard


class Cluster:
    """See Nodes in cluster_ranks.py."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self.roster = Roster(around.wanted)
        self._nodes: dict[int, Node] = {}
        self.arrivals = Arrivals(around, self._welcome)
        self._last_key = 0
        self.reports = Reports(around.pages, around.clock)
        self._run = around.plan.run if around.plan is not None else around.run
        self._adopts_since: float | None = None  # a node has said that it runs the plan's attempt
        self._lineage = ""  # of the newest attempt; none: no attempt was begun by this head
        self.reports.lineage = "" if around.plan is None else around.plan.lineage
        self._fences = Fences(around.make_probe)
        self._interval = CommonInterval(around.pages, around.ranks_each)
        self._short_since: float | None = around.clock()
        self._began = around.clock()
        self._ended = False  # all have been told that the job is over
        self.on_saver: Callable[[int, Mapping[str, Any]], None] = lambda place, answer: None
        """told what the saver of a place has answered"""
        self.on_collected: Callable[[int, int], None] = lambda place, number: None
        self.on_lost: Callable[[int], None] = lambda place: None
        self.on_ask: Answer = lambda request: {"ok": False, "error": "the job is beginning"}
        around.pages.send = lambda verb, values: self._tell_places("pages", verb=verb, values=values)

    # --- nodes come and go ------------------------------------------------------------------------------------

    def _welcome(self, connection: Connection, message: dict[str, Any], found: Greeting) -> None:
        self._last_key += 1
        member = Member(self._last_key, message["rank"], found.held, machine=found.facts.machine)
        node = Node(connection, member, message, self._around.clock())
        self._nodes[member.key] = node
        self.roster.join(member)
        connection.on_message = lambda told: self._on_message(node, told)
        connection.on_end = lambda why: self._lose(node, why)
        node.send("welcome", term=self._around.term, word=self._around.word)
        self._heed_running(node)
        node.slots = found.slots

    def _heed_running(self, node: Node) -> None:
        """Ranks of the attempt that is to be taken up run on; all others are of no use any more."""
        running, plan, place = node.running, self._around.plan, node.running.get("place")
        mine = plan is not None and self.reports.group is None and node.lineage == plan.lineage
        if running and mine and isinstance(place, int) and place in self.roster.vacant:
            node.member.place, node.member.ready = place, True
            if self._adopts_since is None:
                self._adopts_since = self._around.clock()
        elif running:
            node.send("kill")

    def adoptable(self) -> int | None:
        """The attempt to be taken up now: all its nodes are here, or had the time to come; None: there is none, yet."""
        since, around = self._adopts_since, self._around
        if since is None or around.plan is None:
            return None
        late = around.clock() > since + around.timeout + FENCE
        return around.plan.attempt if not self.roster.vacant or late else None

    def adopt(self, group: ClusterRanks) -> None:
        """Take up the ranks that run on; those of a node that has not come count as lost."""
        around = self._around
        assert around.plan is not None
        self.reports.group, self._adopts_since, self._lineage = group, None, around.plan.lineage
        around.pages.every = around.plan.every
        around.machines.begun(self.roster.members.values())
        for place in range(around.wanted):
            node = self._at(place)
            if node is None:
                self._fences.wait(self._began + (around.timeout + FENCE) * _TAKEOVER)
                continue
            node.gone, node.slots, running = node.gone_already, None, node.running
            group.on_started({int(rank): int(pid) for rank, pid in running["pids"].items()}, {})
            for rank, code in running["ended"].items():
                group.on_exit(int(rank), int(code))
        around.pages.reading(NONE)  # the head that is gone may have left another one
        self._end_missing(group, "it has not come to the new head")

    def _lose(self, node: Node, why: str) -> None:
        if self._nodes.pop(node.member.key, None) is None:
            return
        around, place = self._around, node.member.place
        node.connection.close()
        self.roster.leave(node.member.key)
        if self._ended:
            return
        if place < 0:
            around.say(f"{node.name} is gone: {why}")
            return
        self._fences.add(node.address, node.probe, node.heard + (around.timeout + FENCE) * _SLACK)
        around.machines.blame(place, "node-lost")
        if self.reports.group is not None:
            for rank in self._ranks_of(place):
                self.reports.group.on_exit(rank, _KILLED, f"{node.name} is lost: {why}")
        self._vacate(place)

    def look(self) -> None:
        """See who has fallen silent, and whether nodes that are needed have not come in their time."""
        now = self._around.clock()
        self.arrivals.look()
        for node in list(self._nodes.values()):
            silent = now - node.heard
            if silent > self._around.timeout:
                self._lose(node, f"no sign of life for {silent:.1f} s")
        if self.reports.group is not None:
            self._interval.look(*front(self.reports.group.views()))
        missing = self.roster.wanted - len(self.roster.members)
        if missing <= 0:  # a node that gets ready is not missing
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
            places = ", ".join(map(str, self.roster.vacant))
            seconds = f"{self._around.wait:g} s at most (--node-wait)"
            self._around.say(f"waiting for a node for place {places}, for {seconds}")
        elif now - self._short_since > self._around.wait:
            self._short_since = now
            nodes = "1 node is" if missing == 1 else f"{missing} nodes are"
            self._around.stop(f"{nodes} missing, and none has come in {self._around.wait:g} s (--node-wait)")

    def settled(self) -> bool:
        """Whether an attempt may begin: every place has a node whose ranks can be started."""
        if self._adopts_since is not None:
            return False
        self._around.machines.mark(self.roster.members.values())
        full = self.roster.fill()
        for node in self._nodes.values():
            if node.member.place >= 0 and node.slots is not None:
                self._take_up(node)
        return full

    def may_restart(self) -> bool:
        """Whether the next attempt may begin; if so, isolated nodes have made room for others that stand by."""
        if not self.settled():
            return False
        self._around.machines.replace(self.roster.members.values(), self._vacate)
        return self.settled()

    def _vacate(self, place: int) -> None:
        """What the memory of a place's node holds is of no use to the next one."""
        ranks = self._ranks_of(place)
        self._around.pages.forget(ranks.start, len(ranks))
        self.on_lost(place)

    def _take_up(self, node: Node) -> None:
        """What the memory of a node that has just got its place holds goes into the mirrors."""
        slots, node.slots = node.slots, None
        if slots is None or node.member.held != node.member.place:
            return
        if not self._lineage:
            self._lineage = node.lineage
        if node.lineage != self._lineage:  # its steps were made in another attempt: never to be mixed with these
            return
        for rank in self._ranks_of(node.member.place):
            for slot, step in enumerate(slots.get(rank, ())):
                self._around.pages[rank].set_slot(slot, step)

    # --- an attempt -------------------------------------------------------------------------------------------

    def begin(self, group: ClusterRanks) -> int:
        """Have the ranks of a group started; returns MASTER_PORT."""
        self.reports.group = group
        self.reports.forget()
        first = self._at(0)
        if first is None:  # lost since the attempt was decided upon
            self._end_missing(group)
            return 0
        kind, step, persist_at = self._around.pages.prepared
        self._around.begun(self._run, group.attempt)
        self._lineage = self.reports.lineage = f"{self._run}:{group.attempt}"
        pages = self._around.pages
        resume = [int(kind), step, persist_at, pages.every, pages[0].reading]
        self._interval.begin()
        self._around.machines.begun(self.roster.members.values())
        each, wanted = self._around.ranks_each, self._around.wanted
        for place in range(wanted):
            node = self._at(place)
            if node is None:
                continue
            node.gone = False
            given = Placement(place * each, each, wanted * each, place, wanted, first.address, first.port)
            node.send("spawn", attempt=group.attempt, place=asdict(given), resume=resume, lineage=self._lineage)
        self._end_missing(group)
        return first.port

    def _end_missing(self, group: ClusterRanks, why: str = "it has gone before its ranks were started") -> None:
        for place in self.roster.vacant:
            for rank in self._ranks_of(place):
                group.on_exit(rank, _KILLED, f"node {place} is lost: {why}")

    def tell_all(self, do: str) -> None:
        """Send a message without fields to every node of the attempt."""
        self._tell_places(do)

    def _tell_places(self, do: str, **fields: Any) -> None:
        for node in self._nodes.values():
            if node.member.place >= 0:
                node.send(do, **fields)

    def tell_place(self, place: int, do: str, **fields: Any) -> bool:
        """Send a message to the node of a place; False where there is none."""
        node = self._at(place)
        if node is not None:
            node.send(do, **fields)
        return node is not None

    def cleared(self) -> bool:
        """Whether no process of the attempt is left on any node, and none on a lost one can be at work any more."""
        gone = all(node.gone for node in self._nodes.values() if node.member.place >= 0)
        return self._fences.all_down(self._around.clock()) and gone

    def part(self, values: Mapping[int, Any]) -> dict[int, dict[int, Any]]:
        """By place: what is given by rank."""
        parts: dict[int, dict[int, Any]] = {}
        for rank, value in values.items():
            parts.setdefault(rank // self._around.ranks_each, {})[rank] = value
        return parts

    def end(self, code: int, *, keep: bool) -> None:
        """The job is over: every agent ends with this code. keep: memory holds what storage does not."""
        self._ended = True
        for node in self._nodes.values():
            node.send("done", code=code, keep=int(keep))

    @property
    def left(self) -> int:
        """Nodes that are connected."""
        return len(self._nodes)

    def overview(self) -> dict[str, Any]:
        """Answer `ftctl nodes`."""
        return asking.overview(self._nodes.values(), self._around)

    def _at(self, place: int) -> Node | None:
        member = self.roster.at(place)
        return None if member is None else self._nodes.get(member.key)

    def _ranks_of(self, place: int) -> range:
        each = self._around.ranks_each
        return range(place * each, (place + 1) * each)

    def is_cut_off(self) -> bool:
        """Whether no node of another machine is connected, and a lost one may live: the cut may be around this head."""
        others = any(node.address != self._around.address for node in self._nodes.values())
        return not others and not self._fences.all_down(self._around.clock())

    def _may_go_on(self) -> bool:
        """Whether ranks may go on: no other head can have taken this one's place, or no node that has ranks is there
        to start one. A head that only the storage does not answer is a head still.
        """
        around = self._around
        if around.leads():
            return True
        least = around.clock() - around.timeout * STALE_PART
        heard = all(node.heard >= least for node in self._nodes.values() if node.member.place >= 0)
        return heard and not self.roster.vacant

    # --- what nodes say ---------------------------------------------------------------------------------------

    def _on_message(self, node: Node, message: dict[str, Any]) -> None:
        node.heard = self._around.clock()
        try:
            name = messages.check(message, messages.UP)
            self._take(node, name, message)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            self._lose(node, f"its agent has sent {error}")

    def _take(self, node: Node, name: str, message: dict[str, Any]) -> None:
        if name == "beat" and node.heard >= node.told_heard + _TELL_HEARD and self._may_go_on():
            node.told_heard = node.heard
            node.send("heard", number=message["number"])
        if name == "ready":
            node.member.ready = True
        elif name == "unfit":
            self._lose(node, message["why"][:_LONGEST_REASON])
        elif name == "stop":
            self._around.stop(message["why"][:200])
        elif name == "hurry":
            self._around.hurry()
        elif name == "ask":
            asking.pass_on(node, message, self.on_ask)
        elif name == "saver":
            self.on_saver(node.member.place, message["answer"])
        elif name == "collected":
            self.on_collected(node.member.place, message["number"])
        elif name in ("exit", "gone") and node.running and self.reports.group is None:
            node.note_end(name, message)
        elif node.member.place >= 0:
            self.reports.take(node, name, message, self._ranks_of(node.member.place))
