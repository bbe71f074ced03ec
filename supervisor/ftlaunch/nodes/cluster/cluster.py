"""The nodes of a job at its head: who is here, who has which place, what they say, who is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.cluster import messages
from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.copies.common_interval import CommonInterval
from ftlaunch.nodes.cluster.copies.copy_interval import CopyInterval
from ftlaunch.nodes.cluster.copies.held_steps import HeldSteps
from ftlaunch.nodes.cluster.copies.peer_copies import PeerCopies
from ftlaunch.nodes.cluster.leadership import Leadership
from ftlaunch.nodes.cluster.membership.fences import Fences
from ftlaunch.nodes.cluster.membership.greeting import Greeting
from ftlaunch.nodes.cluster.membership.lineage import lineage_of
from ftlaunch.nodes.cluster.membership.roster import Member, Roster
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.nodes.cluster.nodes import asking, standby
from ftlaunch.nodes.cluster.nodes.arrivals import Arrivals
from ftlaunch.nodes.cluster.nodes.asking import Answer
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.nodes.placed_nodes import PlacedNodes
from ftlaunch.nodes.cluster.nodes.reports import Reports
from ftlaunch.nodes.cluster.older_ranks import OlderRanks
from ftlaunch.nodes.cluster.regrouping import Regrouping
from ftlaunch.policy.cause_kinds import NODE_LOST
from ftlaunch.ranks.view import front
from ftlaunch.spec.nodes.placement import Placement
from ftlaunch_contract.pages.page import NONE

FENCE = 1.0  # seconds after the node timeout in which an agent that is not heard ends its ranks
_SLACK = 1.1  # clocks of two machines may run so differently
_KILLED = -9
_LONGEST_REASON = 400  # characters
_TICK = 0.05  # seconds between looks at all nodes
_TICK_A_NODE = 0.0005  # the same for each node: of very many a look takes long
_INTERVAL_TICK_A_NODE = 0.002  # seconds between looks at the interval that the nodes want, for each node
_TELL_HEARD = 0.25  # seconds between two words to a node that it is heard


class Cluster:
    """See Nodes in cluster_ranks.py."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self.ranks_each = around.ranks_each
        self.roster = Roster(around.least, around.most, around.last_call)
        self._nodes: dict[int, Node] = {}
        self.arrivals = Arrivals(around, self._welcome)
        self._places = PlacedNodes(self.roster, self._nodes, around.ranks_each, around.tell)
        self.reports = Reports(around.pages, around.clock)
        self._run = around.run  # that of the plan, once its attempt was taken up: no two attempts have one name
        self._held = HeldSteps(around, self.roster)
        self.reports.lineage = "" if around.plan is None else around.plan.lineage
        self._fences = Fences(around.make_probe)
        self.leadership = Leadership(around, self.roster, self._nodes, self._fences)
        self._interval = CommonInterval(around.pages, around.ranks_each)
        self._copy_interval = CopyInterval(around.pages, around.copies)
        self.copies = PeerCopies(around, self.roster, self._nodes, self._places)
        self.older = OlderRanks(around, self.roster, self._nodes, self._fences, around.timeout + FENCE)
        self.regrouping = Regrouping(around, self.roster, self._nodes, self._held)
        self._last_key = 0
        self._looked = -inf
        self._ended = False  # ended: all know that the job is over
        self._looked_at_intervals = -inf
        self.on_saver: Callable[[int, Mapping[str, Any]], None] = lambda place, answer: None
        """told what the saver of a place has answered"""
        self.on_collected: Callable[[int, int], None] = lambda place, number: None
        self.on_lost: Callable[[int], None] = lambda place: None
        self.on_ask: Answer = lambda request: {"ok": False, "error": "the job is beginning"}
        if around.plan is not None:
            self.roster.wanted = around.plan.nodes
            around.pages.resize(around.plan.nodes * around.ranks_each)
        around.pages.send = lambda verb, values: self._places.tell_all("pages", verb=verb, values=values)

    # --- nodes come and go ------------------------------------------------------------------------------------

    def _welcome(self, connection: Connection, message: dict[str, Any], found: Greeting) -> None:
        self._last_key += 1
        wish = message["rank"]
        held = found.held
        where = found.facts.machine
        member = Member(self._last_key, wish, held, lineage=message["lineage"], machine=where)
        node = Node(connection, member, message, self._around.clock(), self._around.address)
        self._nodes[member.key] = node
        self.roster.join(member)
        self._places.came(node)
        connection.on_message = lambda told: self._on_message(node, told)
        connection.on_end = lambda why: self._lose(node, why)
        node.send("welcome", term=self._around.term, word=self._around.word)
        self.older.meet(node)
        node.slots = found.slots

    def adopt(self, group: ClusterRanks) -> None:
        """Take up the ranks that run on; those of a node that has not come count as lost."""
        around = self._around
        assert around.plan is not None
        self.reports.group = group
        self._run = around.plan.run
        self._held.lineage = around.plan.lineage
        self.older.close()
        self.copies.goes_on(around.plan.lineage)
        around.pages.every = around.plan.every
        around.machines.begun(self.roster.members.values())
        self.roster.begin()
        self._places.given()
        placed = self.roster.placed()
        for place in range(self.roster.wanted):
            if (node := self._places.node_of(placed.get(place))) is None:
                self._fences.wait(self.older.last)
                continue
            node.gone = node.gone_already
            node.slots = None
            running = node.running
            group.on_started({int(rank): int(pid) for rank, pid in running["pids"].items()}, {})
            for rank, code in running["ended"].items():
                group.on_exit(int(rank), int(code))
        around.pages.reading(NONE)  # the head that is gone may have left another one
        self._end_missing(group, self.roster.vacant, "it has not come to the new head")
        self._end_missing(group, self.older.untold(), "the head that is gone has not said where its ranks resume")
        self.older.pass_on_stop()

    def _lose(self, node: Node, why: str) -> None:
        if self._nodes.pop(node.member.key, None) is None:
            return
        around = self._around
        place = node.member.place
        node.connection.close()
        self.roster.leave(node.member.key)
        if self._ended:
            return
        self._places.left(node, why)
        if place >= 0 or node.ends:
            self._fences.add(node.address, node.probe, node.heard + (around.timeout + FENCE) * _SLACK)
        if place < 0:
            around.say(f"{node.name} is gone: {why}")
            return
        around.machines.blame(place, NODE_LOST)
        if self.reports.group is not None:
            for rank in self._places.ranks_of(place):
                self.reports.group.on_exit(rank, _KILLED, f"{node.name} is lost: {why}")
        self._vacate(place)

    def look(self) -> None:
        """See who has fallen silent, and whether nodes that are needed have not come in their time."""
        now = self._around.clock()
        if now < self._looked + max(_TICK, _TICK_A_NODE * len(self._nodes)):
            return  # it is called after each message, and there may be thousands a second
        self._looked = now
        self.arrivals.look()
        for node in list(self._nodes.values()):
            silent = now - node.heard
            if silent > self._around.timeout:
                self._lose(node, f"no sign of life for {silent:.1f} s")
        if (group := self.reports.group) is not None and now >= self._intervals_due():
            self._looked_at_intervals = now
            self._interval.look(lambda: front(group.views()))
            self._copy_interval.look(node for node in self._nodes.values() if node.member.place >= 0)
        self.copies.look()
        self.regrouping.look()

    def _intervals_due(self) -> float:
        return self._looked_at_intervals + _INTERVAL_TICK_A_NODE * len(self._nodes)

    def settled(self) -> bool:
        """Whether an attempt may begin: every place has a node whose ranks can be started."""
        if not self._may_begin() or self.regrouping.due():
            return False
        self._around.machines.mark(self.roster.members.values())
        decided = self.roster.size(self._around.clock()) is not None
        full = (decided or self.roster.begun) and self.roster.fill()
        self._held.take_up_of(self._nodes.values())
        return full and decided and self.copies.known(self._held.lineage)

    def _may_begin(self) -> bool:
        """Whether no older ranks can be at work: a head that storage has not seen begins nothing without its nodes."""
        return not self.older.awaited and not self.older.may_run() and self.leadership.may_go_on()

    def may_restart(self) -> bool:
        """Whether the next attempt may begin; it is told where an isolated node keeps its place."""
        if settled := self.settled():
            self._around.machines.replace(self.roster.members.values(), self._vacate)
        return settled

    def _vacate(self, place: int) -> None:
        """What the memory of a place's node holds is of no use to the next one."""
        ranks = self._places.ranks_of(place)
        self._around.pages.forget(ranks.start, len(ranks))
        self.copies.lost_snapshots.lose(place)
        self.on_lost(place)

    def regroups(self) -> bool:
        """Whether the next attempt has other nodes than memory is of."""
        machines = self._around.machines
        members = self.roster.members.values()
        if not self._may_begin() or not (self.regrouping.due() or machines.due(members)):
            return False
        self.older.close()  # the job goes on without ranks that are not known by now
        return True

    def regroup(self, saved: bool) -> None:
        """Let the nodes change. saved: storage has what memory holds."""
        before = self.roster.wanted
        roster = self.roster
        self.copies.lost_snapshots.let_go()
        self.regrouping.change(saved)
        self._around.machines.replace(roster.members.values(), self._vacate)  # saved or not: a bad machine goes
        if roster.wanted != before:
            self.reports.lineage = ""  # what pages say from now on is of another number of nodes

    # --- an attempt -------------------------------------------------------------------------------------------

    def begin(self, group: ClusterRanks) -> int:
        """Have the ranks of a group started; returns MASTER_PORT."""
        self.reports.group = group
        self.older.close()
        self.reports.forget()
        self.roster.begin()
        placed = self.roster.placed()
        if (first := self._places.node_of(placed.get(0))) is None:  # lost since the attempt was decided upon
            self._end_missing(group, range(self.roster.wanted))
            return 0
        kind, step, persist_at = self._around.pages.prepared
        self._around.begun(self._run, group.attempt)
        before = self._held.lineage
        self._held.lineage = self.reports.lineage = lineage_of(self._run, group.attempt, self.roster.wanted)
        self.copies.begun(self._held.lineage, before)
        pages = self._around.pages
        resume = [int(kind), step, persist_at, pages.every, pages[0].reading]
        self._interval.begin()
        self._around.machines.begun(self.roster.members.values())
        each = self._around.ranks_each
        wanted = self.roster.wanted
        for place, node in self._places.in_order(placed):
            node.gone = False
            given = Placement(place * each, each, wanted * each, place, wanted, first.address, first.port)
            copies = {"before": before, "every": pages.copied_every, "buddy": self.copies.buddy_of(place)}
            told = {"resume": resume, "lineage": self._held.lineage, "copies": copies}
            told["seed"] = str(self._around.seed)
            node.send("spawn", attempt=group.attempt, place=asdict(given), **told)
        self._end_missing(group, self.roster.vacant)
        self._places.given()
        standby.tell(self._nodes.values(), self.roster)
        return first.port

    def _end_missing(
        self, group: ClusterRanks, places: Iterable[int], why: str = "it has gone before its ranks were started"
    ) -> None:
        for place in places:
            for rank in self._places.ranks_of(place):
                group.on_exit(rank, _KILLED, f"node {place} is lost: {why}")

    def tell_all(self, do: str) -> None:
        """Send a message without fields to every node of the attempt."""
        self._places.tell_all(do)

    def tell_place(self, place: int, do: str, **fields: Any) -> bool:
        """Send a message to the node of a place; False where there is none."""
        return self._places.tell(place, do, **fields)

    def cleared(self) -> bool:
        """Whether no process of the attempt is left on any node, and none on a lost one can be at work any more."""
        gone = all(node.gone for node in self._nodes.values() if node.member.place >= 0)
        return self._fences.all_down(self._around.clock()) and gone

    def end(self, code: int, *, keep: bool) -> None:
        """The job is over: every agent ends with this code. keep: memory holds what storage does not."""
        self._ended = True
        for node in self._nodes.values():
            node.send("done", code=code, keep=int(keep))

    def newest_unplaced(self) -> int:
        """The newest step in the memory of nodes that have no place, or NONE."""
        unplaced = [node.slots or {} for node in self._nodes.values() if node.member.place < 0]
        return max((step for slots in unplaced for steps in slots.values() for step in steps), default=NONE)

    @property
    def left(self) -> int:
        """Nodes that are connected."""
        return len(self._nodes)

    def overview(self) -> dict[str, Any]:
        """Answer `ftctl nodes`."""
        return asking.overview(self._nodes.values(), self._around)

    # --- what nodes say ---------------------------------------------------------------------------------------

    def _on_message(self, node: Node, message: dict[str, Any]) -> None:
        node.heard = self._around.clock()
        try:
            self._take(node, messages.check(message, messages.UP), message)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            self._lose(node, f"its agent has sent {error}")

    def _take(self, node: Node, name: str, message: dict[str, Any]) -> None:
        if name == "beat" and node.heard >= node.told_heard + _TELL_HEARD:
            node.told_heard = node.heard
            node.send("heard", number=message["number"] if self.leadership.may_go_on() else NONE)
        if name == "gone":
            node.ranks_gone(message)
        if name == "ready":
            node.member.ready = True
            standby.tell([node] if self.reports.group is not None else [], self.roster)
        elif name == "unfit":
            self._lose(node, message["why"][:_LONGEST_REASON])
        elif name == "stop":
            self._around.stop(message["why"][:200])
        elif name == "drain":
            self.regrouping.signalled(node, message["why"][:200])
        elif name == "hurry":
            self._around.hurry()
        elif name == "ask":
            asking.pass_on(node, message, self.on_ask)
        elif name == "saver":
            self.on_saver(node.member.place, message["answer"])
        elif name == "collected":
            self.on_collected(node.member.place, message["number"])
        elif name in ("exits", "gone") and node.running and self.reports.group is None:
            node.note_end(name, message)
        elif not self.copies.take(node, name, message) and node.member.place >= 0:
            self.reports.take(node, name, message, self._places.ranks_of(node.member.place))
