"""The nodes of a job at its head: handles their messages, notices lost nodes, and starts attempts on them.

`Cluster` joins the parts that each keep one matter: the roster (places), the fences (lost nodes), the mirrors of ranks
and pages, the copies of snapshots, regrouping, and leadership. Runs in the head's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.cluster import messages
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.copies.common_interval import CommonInterval
from ftlaunch.nodes.cluster.copies.copy_interval import CopyInterval
from ftlaunch.nodes.cluster.copies.held_steps import HeldSteps
from ftlaunch.nodes.cluster.copies.peer_copies import PeerCopies
from ftlaunch.nodes.cluster.electorate import Electorate
from ftlaunch.nodes.cluster.leadership import Leadership
from ftlaunch.nodes.cluster.membership.fences import Fences
from ftlaunch.nodes.cluster.membership.greeting import Greeting
from ftlaunch.nodes.cluster.membership.lineage import lineage_of
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.membership.roster import Member, Roster
from ftlaunch.nodes.cluster.mirrors.cluster_ranks import ClusterRanks
from ftlaunch.nodes.cluster.node_caches import NodeCaches
from ftlaunch.nodes.cluster.node_loads import NodeLoads
from ftlaunch.nodes.cluster.node_logs import NodeLogs
from ftlaunch.nodes.cluster.nodes import asking, standby
from ftlaunch.nodes.cluster.nodes.arrivals import Arrivals
from ftlaunch.nodes.cluster.nodes.asking import Answer
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.nodes.placed_nodes import PlacedNodes
from ftlaunch.nodes.cluster.nodes.reports import Reports
from ftlaunch.nodes.cluster.older_ranks import OlderRanks
from ftlaunch.nodes.cluster.regrouping import Regrouping
from ftlaunch.policy.cause_kinds import NODE_LOST
from ftlaunch.ranks.gpu_memory import MemoryWaitEnd
from ftlaunch.ranks.view import front
from ftlaunch.reporting.events.gpu_memory import of_memory_wait
from ftlaunch.spec.nodes.placement import Placement
from ftlaunch_contract.pages.page import NONE

FENCE_SECONDS = 1.0  # seconds after the node timeout within which an agent that lost its head ends its ranks
_SLACK = 1.1  # the factor by which the clocks of two machines may differ in speed
_KILLED = -9  # the exit code that the ranks of a lost node are given
_LONGEST_REASON = 400  # characters
_TICK_SECONDS = 0.05  # between two polls of all nodes, at least
_TICK_A_NODE_SECONDS = 0.0005  # between two polls, for each node, because a poll of very many takes long
_INTERVAL_TICK_A_NODE_SECONDS = 0.002  # between two polls of the intervals that the nodes want, for each node
_CONFIRM_SECONDS = 0.25  # between two messages to a node that its beats are heard


class Cluster:
    """The nodes of one job. Implements `Nodes` of `mirrors/cluster_ranks.py` for the ranks of an attempt."""

    def __init__(self, context: ClusterContext) -> None:
        """Begin without nodes; the pages get the size of the plan's attempt, if there is a plan."""
        self._context = context
        self.ranks_each = context.ranks_each
        self.roster = Roster(context.least, context.most, context.last_call_seconds)
        self._nodes: dict[int, Node] = {}
        self.arrivals = Arrivals(context, self._welcome)
        self._places = PlacedNodes(
            roster=self.roster, nodes=self._nodes, ranks_each=context.ranks_each, report=context.report
        )
        self.reports = Reports(context.pages, context.clock)
        self._run = context.run  # becomes the plan's once its attempt is adopted, so that no two attempts share a name
        self._held = HeldSteps(context, self.roster)
        self.reports.lineage = "" if context.plan is None else context.plan.lineage
        self._fences = Fences(context.make_probe)
        self.leadership = Leadership(context=context, roster=self.roster, nodes=self._nodes, fences=self._fences)
        self._interval = CommonInterval(context.pages, context.ranks_each)
        self._copy_interval = CopyInterval(context.pages, context.copies)
        self.copies = PeerCopies(context=context, roster=self.roster, nodes=self._nodes, places=self._places)
        self.older = OlderRanks(
            context=context,
            roster=self.roster,
            nodes=self._nodes,
            fences=self._fences,
            lease_seconds=context.timeout_seconds + FENCE_SECONDS,
        )
        self.regrouping = Regrouping(context=context, roster=self.roster, nodes=self._nodes, held=self._held)
        self.caches = NodeCaches(context.store, self._places, self._lose)
        self.loads = NodeLoads(
            places=self._places, address=context.load_address, note=context.load_note, head_token=context.word
        )
        self._electorate = Electorate(
            voting=context.voting,
            nodes=self._nodes,
            roster=self.roster,
            unshared=context.unshared,
            address=context.address,
            say=context.say,
        )
        self.logs = NodeLogs(self._nodes, context.ranks_each, context.clock)
        self._last_key = 0
        self._polled_at = -inf
        self._ended = False  # the nodes were told that the job is over
        self._intervals_polled_at = -inf
        self.on_saver: Callable[[int, Mapping[str, Any]], None] = lambda place, answer: None
        """called with a place and what the saver of its node has answered"""
        self.on_collected: Callable[[int, int], None] = lambda place, number: None
        """called with a place and the number of an autopsy for which its node has collected all data"""
        self.on_lost: Callable[[int], None] = lambda place: None
        """called with a place whose node's memory is lost"""
        self.on_ask: Answer = lambda request, reply: reply({"ok": False, "error": "the job is beginning"})
        """answers a request that was made on a node, now or later"""
        if context.plan is not None:
            self.roster.wanted = context.plan.nodes
            context.pages.resize(context.plan.nodes * context.ranks_each)
        context.pages.send = lambda verb, values: self._places.send_all("pages", verb=verb, values=values)

    # --- nodes come and go ------------------------------------------------------------------------------------

    def _welcome(self, connection: Connection, message: dict[str, Any], found: Greeting) -> None:
        """Take in a node that may take part. message: its hello; found: what the hello says, checked."""
        self._last_key += 1
        store = self._context.store
        is_current = store is None or store.is_memory_current(message["lineage"])
        member = Member(
            key=self._last_key,
            wish=message["rank"],
            held=found.held if is_current else NONE,
            lineage=message["lineage"] if is_current else "",
            machine=found.facts.machine,
        )
        node = Node(
            connection=connection,
            member=member,
            hello=message,
            now=self._context.clock(),
            head=self._context.address,
        )
        self._nodes[member.key] = node
        self.roster.join(member)
        if not is_current and found.slots:
            self._context.say(f"the job has gone on elsewhere: the steps in the memory of {node.host} are not used")
        self._places.report_joined(node)
        connection.on_message = lambda message: self._on_message(node, message)
        connection.on_end = lambda why: self._lose(node, why)
        node.send("welcome", term=self._context.term, word=self._context.word)
        self.older.meet(node)
        node.slots = found.slots if is_current else None

    def adopt(self, group: ClusterRanks) -> None:
        """Adopt the ranks of the plan's attempt, which run on. The ranks of nodes that have not come count as lost."""
        context = self._context
        assert context.plan is not None
        self.reports.group = group
        self._run = context.plan.run
        self._held.lineage = context.plan.lineage
        self.older.close()
        self.copies.continue_attempt(context.plan.lineage)
        context.pages.every = context.plan.every
        context.machines.begin_attempt(self.roster.members.values())
        self.roster.begin()
        self._places.report_places()
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
        context.pages.reading(NONE)  # resets a mark that the lost head may have left
        self._end_missing(group, self.roster.vacant, "it has not come to the new head")
        undecided = self.older.send_missing_decisions()
        self._end_missing(group, undecided, "the head that is gone has not said where its ranks resume")
        self.older.pass_on_stop()

    def _lose(self, node: Node, why: str) -> None:
        """Give up a node: fence it off, end its ranks in the mirrors, and forget what its memory holds."""
        if self._nodes.pop(node.member.key, None) is None:
            return
        context = self._context
        place = node.member.place
        node.connection.close()
        self.roster.leave(node.member.key)
        self.logs.lose(node, why)
        if self._ended:
            return
        self.caches.forget_lost()
        self.loads.forget_lost()
        self._places.report_left(node, why)
        if place >= 0 or node.ends:
            until = node.last_message_at + (context.timeout_seconds + FENCE_SECONDS) * _SLACK
            self._fences.add(node.address, node.probe, until)
        if place < 0:
            context.say(f"{node.name} is gone: {why}")
            return
        context.machines.blame(place, NODE_LOST)
        if self.reports.group is not None:
            for rank in self._places.ranks_of(place):
                self.reports.group.on_exit(rank, _KILLED, f"{node.name} is lost: {why}")
        self._vacate(place)

    def poll(self) -> None:
        """Give up silent nodes, and go on with whatever waits for nodes or for time."""
        now = self._context.clock()
        if now < self._polled_at + max(_TICK_SECONDS, _TICK_A_NODE_SECONDS * len(self._nodes)):
            return  # this is called after each message, and there may be thousands a second
        self._polled_at = now
        self.arrivals.poll()
        self.logs.poll()
        for node in list(self._nodes.values()):
            silent = now - node.last_message_at
            if silent > self._context.timeout_seconds:
                self._lose(node, f"no sign of life for {silent:.1f} s")
        if (group := self.reports.group) is not None and now >= self._intervals_due():
            self._intervals_polled_at = now
            self._interval.update(lambda: front(group.views()))
            self._copy_interval.update(node for node in self._nodes.values() if node.member.place >= 0)
        self.copies.poll()
        self.regrouping.poll()
        self._electorate.poll()
        self._context.unshared.send_copies(self._nodes.values())

    def _intervals_due(self) -> float:
        return self._intervals_polled_at + _INTERVAL_TICK_A_NODE_SECONDS * len(self._nodes)

    def is_settled(self) -> bool:
        """Return whether an attempt may begin: every place has a node whose ranks can be started.

        The call also gives vacant places to nodes, and takes up what their memory holds.
        """
        if not self._may_begin() or self.regrouping.due():
            return False
        self._context.machines.mark(self.roster.members.values())
        decided = self.roster.size(self._context.clock()) is not None
        full = (decided or self.roster.begun) and self.roster.fill()
        self._held.load_steps(self._nodes.values())
        return full and decided and self.copies.ask_kept(self._held.lineage) and self.caches.are_ready()

    def _may_begin(self) -> bool:
        """Return whether no older ranks can be at work, and this head leads for certain."""
        return not self.older.awaited and not self.older.may_run() and self.leadership.may_go_on()

    def may_restart(self) -> bool:
        """Return whether the next attempt may begin, and if so, replace isolated nodes."""
        if any(node.awaits_memory for node in self._nodes.values() if node.member.place >= 0):
            return False
        if is_settled := self.is_settled():
            self._context.machines.replace(self.roster.members.values(), self._vacate)
        return is_settled

    def _vacate(self, place: int) -> None:
        """Forget what the memory of a place's node holds, because the next node there does not have it."""
        ranks = self._places.ranks_of(place)
        self._context.pages.forget(ranks.start, len(ranks))
        self.copies.lost_snapshots.lose(place)
        self.on_lost(place)

    def must_regroup(self) -> bool:
        """Return whether the nodes must change before the next attempt."""
        machines = self._context.machines
        members = self.roster.members.values()
        if not self._may_begin() or not (self.regrouping.due() or machines.due(members)):
            return False
        self.older.close()  # ranks that are unknown by now are not adopted
        return True

    def regroup(self, saved: bool) -> None:
        """Let the nodes change. saved: whether storage holds the newest step that memory holds."""
        before = self.roster.wanted
        roster = self.roster
        self.copies.lost_snapshots.forget_all()
        self.regrouping.change(saved)
        self._context.machines.replace(
            roster.members.values(), self._vacate
        )  # even if nothing was saved: a bad machine must go
        if roster.wanted != before:
            self.reports.lineage = ""  # beats about the old number of nodes no longer count

    # --- an attempt -------------------------------------------------------------------------------------------

    def begin(self, group: ClusterRanks) -> int:
        """Have the nodes start the ranks of a group.

        Returns:
            MASTER_PORT; 0 if the node of place 0 was lost meanwhile, in which case all ranks count as lost.
        """
        self.reports.group = group
        self.older.close()
        self.reports.forget()
        self.roster.begin()
        placed = self.roster.placed()
        if (first := self._places.node_of(placed.get(0))) is None:  # lost since the attempt was decided upon
            self._end_missing(group, range(self.roster.wanted))
            return 0
        kind, step, persist_at = self._context.pages.prepared
        self._context.begun(self._run, group.attempt)
        before = self._held.lineage
        lineage = lineage_of(self._run, group.attempt, self.roster.wanted)
        self._held.lineage = lineage
        self.reports.lineage = lineage
        self.copies.begin_attempt(lineage, before)
        pages = self._context.pages
        resume = [int(kind), step, persist_at, pages.every, pages[0].reading]
        self._interval.begin()
        self._context.machines.begin_attempt(self.roster.members.values())
        each = self._context.ranks_each
        wanted = self.roster.wanted
        for place, node in self._places.in_order(placed):
            node.gone = False
            placement = Placement(
                first=place * each,
                count=each,
                world=wanted * each,
                node=place,
                nodes=wanted,
                address=first.address,
                port=first.port,
            )
            node.send(
                "spawn",
                attempt=group.attempt,
                place=asdict(placement),
                resume=resume,
                lineage=lineage,
                copies={"before": before, "every": pages.copied_every, "buddy": self.copies.buddy_of(place)},
                seed=str(self._context.seed),
            )
        self._end_missing(group, self.roster.vacant)
        self._places.report_places()
        standby.notify(self._nodes.values(), self.roster)
        return first.port

    def _end_missing(
        self, group: ClusterRanks, places: Iterable[int], why: str = "it has gone before its ranks were started"
    ) -> None:
        for place in places:
            for rank in self._places.ranks_of(place):
                group.on_exit(rank, _KILLED, f"node {place} is lost: {why}")

    def send_all(self, do: str) -> None:
        """Send a message without fields to every node of the attempt."""
        self._places.send_all(do)

    def send_to_place(self, place: int, do: str, **fields: Any) -> bool:
        """Send a message to the node of a place. Return False if there is no node."""
        return self._places.send(place, do, **fields)

    def is_cleared(self) -> bool:
        """Return whether no process of the attempt is left on any node, nor can be at work on a lost one."""
        gone = all(node.gone for node in self._nodes.values() if node.member.place >= 0)
        return self._fences.all_down(self._context.clock()) and gone

    def end(self, code: int, *, keep: bool) -> None:
        """End the job: tell every agent to end.

        Args:
            code: the exit code of all agents.
            keep: whether memory holds steps that storage lacks, so that the agents keep it.
        """
        self._ended = True
        self._context.unshared.send_rest_of_journal(self._nodes.values())
        for node in self._nodes.values():
            node.send("done", code=code, keep=int(keep))

    def send_elsewhere(self, address: str, port: int) -> None:
        """Send all nodes to the head at an address and a port, because this one gives way to it."""
        self._ended = True
        for node in self._nodes.values():
            node.send("elsewhere", address=address, port=port)

    def find_newest_unplaced(self) -> int:
        """Return the newest step in the memory of nodes without a place, or NONE."""
        unplaced = [node.slots or {} for node in self._nodes.values() if node.member.place < 0]
        return max((step for slots in unplaced for steps in slots.values() for step in steps), default=NONE)

    def send_plan(self, plan: Plan) -> None:
        """Send the plan of a new attempt to the nodes that do not share the run dir."""
        self._context.unshared.send_plan(self._nodes.values(), plan)

    @property
    def left(self) -> int:
        """The number of connected nodes."""
        return len(self._nodes)

    def overview(self) -> dict[str, Any]:
        """Return the answer to `ftctl nodes`."""
        return asking.overview(self._nodes.values(), self._context)

    # --- what nodes say ---------------------------------------------------------------------------------------

    def _on_message(self, node: Node, message: dict[str, Any]) -> None:
        node.last_message_at = self._context.clock()
        try:
            self._dispatch(node, messages.check(message, messages.UP), message)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            self._lose(node, f"its agent has sent {error}")

    def _dispatch(self, node: Node, name: str, message: dict[str, Any]) -> None:
        if name == "beat" and node.last_message_at >= node.confirmed_at + _CONFIRM_SECONDS:
            node.confirmed_at = node.last_message_at
            node.send("heard", number=message["number"] if self.leadership.may_go_on() else NONE)
        if name == "gone":
            node.note_ranks_gone(message)
        if name == "gpu_memory":
            node.awaits_memory = False
            if event := of_memory_wait(MemoryWaitEnd.from_fields(message), node.name):
                self._context.report(event)
            return
        if name == "ready":
            self._context.unshared.record_ready(node, message)
            node.member.ready = True
            if self._context.plan is None:
                self.loads.meet(node)
            if self.reports.group is not None:
                standby.notify([node], self.roster)
        elif name == "unfit":
            self._lose(node, message["why"][:_LONGEST_REASON])
        elif name == "stop":
            self._context.stop(message["why"][:200])
        elif name == "drain":
            self.regrouping.drain_on_signal(node, message["why"][:200])
        elif name == "hurry":
            self._context.hurry()
        elif name == "ask":
            asking.pass_on(node, message, self.on_ask)
        elif name == "voter":
            self._electorate.note(node, message)
        elif name == "logs":
            self.logs.handle_answer(message)
        elif name == "saver":
            self._handle_saver_answer(node, message["answer"])
        elif name == "file":
            if node.member.place >= 0:
                self._context.unshared.keep(message, self._places.ranks_of(node.member.place))
        elif name == "collected":
            self.on_collected(node.member.place, message["number"])
        elif name in ("exits", "gone") and node.running and self.reports.group is None:
            node.note_end(name, message)
        elif not self.copies.handle_message(node, name, message) and node.member.place >= 0:
            ranks = self._places.ranks_of(node.member.place)
            self.reports.handle_message(node=node, name=name, message=message, ranks=ranks)

    def _handle_saver_answer(self, node: Node, answer: Mapping[str, Any]) -> None:
        if answer.get("did") == "fetch":
            self.caches.handle_answer(node, answer)
        elif answer.get("did") == "load":
            self.loads.handle_answer(node, answer)
        else:
            self.on_saver(node.member.place, answer)
