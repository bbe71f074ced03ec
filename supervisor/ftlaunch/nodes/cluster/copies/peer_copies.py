"""Copies of snapshots in the memory of other nodes: who keeps whose, what is kept, and how ranks get them back.

Nodes are asked what they keep while no rank runs; from then on they change nothing until the next attempt. Copies carry
the lineage of the attempt that has made them, and copies of two attempts are never mixed. Runs in the head's event
loop; the nodes' copiers move the bytes.

A node has three numbers here:

- Its place, 0 to the number of nodes less one, says which ranks it runs. A standby has the place -1. A place goes to
  another node when its node is lost.
- Its key belongs to the member of the roster for as long as the node is connected, with or without a place.
- Its keeper number is `Kept.node`, and `Source.node` in a plan: the number of places plus the key. In a plan a number
  below the number of places means the memory of a node's own ranks. Keeper numbers lie above all places, so that the
  plan never takes a kept copy for a snapshot of the keeper's own ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.memory.recovery_plan import NONE, Kept, RecoveryPlan, Rung
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.copies.lost_snapshots import LostSnapshots
from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.nodes.placed_nodes import PlacedNodes
from ftlaunch.nodes.peers.plan.ring import buddies
from ftlaunch_contract.protocol import Resume

_MOST_SUPPLIERS = 8  # nodes that one node reads from, besides those that keep its ranks' copies
_PATIENCE_SECONDS = 10.0  # seconds that the nodes of a fetch have to begin the attempt
_LONGEST_REASON = 400  # characters

Planned = Callable[[list[dict[str, Any]]], None]
"""called, before the nodes have read anything, with a row for each fetching node: {"place", "sources"}

`sources` is a list of {"rank", "group", "node", "of", "bytes"}: the place of the node that supplies these bytes of the
rank (-1: a standby), from the snapshot of the rank `of`.
"""
Done = Callable[[str, list[dict[str, Any]]], None]
"""called at the end of a fetch with the reason of a failure (empty after success), and a row for each node that has
fetched: {"place", "seconds", "bytes", "sources"}

`sources` is as in `Planned`. The function is not called if the attempt ends or another fetch begins before the end.
"""


@dataclass
class _Fetch:
    """A fetch of lost snapshots by the nodes that need them."""

    lineage: str
    """the lineage of the attempt to which the snapshots belong"""
    step: int
    wanted: dict[int, dict[int, int]]
    """place of the fetching node -> rank -> key of the node that keeps the rank's copy; NONE if that node is gone"""
    planned: Planned
    done: Done
    number: int
    """identifies the fetch in messages"""
    until: float
    """monotonic seconds at which the fetch is given up unless all its nodes have begun the attempt"""
    for_others: bool
    """whether nodes fetch for ranks of other nodes, so that no attempt waits for the fetch"""
    asked: dict[int, int] = field(default_factory=dict)
    """place -> key of the node of that place that was told to fetch"""
    brought: list[dict[str, Any]] = field(default_factory=list)
    """the rows of `Done`"""
    plans: dict[int, list[Any]] = field(default_factory=dict)
    """place -> the `sources` of `Planned`"""


class PeerCopies:
    """The copies of one job. Implements `PeerMemory` of the engine, and `CopiesElsewhere`."""

    def __init__(self, context: ClusterContext, roster: Roster, nodes: Mapping[int, Node], places: PlacedNodes) -> None:
        """Begin without copies.

        Args:
            context: what the classes about nodes share.
            roster: the members and their places.
            nodes: the connected nodes, by the key of their members.
            places: the nodes by place.
        """
        self._context = context
        self._roster = roster
        self._nodes = nodes
        self._places = places
        self.ranks_each = context.ranks_each
        context.pages.on_decided = self._decided
        self._number = 0  # of the newest question or fetch
        self.lineage = ""
        """the lineage of the running attempt, or the last one"""
        self._buddies = dict[int, int]()  # place -> place of the node that keeps its copies
        self.lost_snapshots = LostSnapshots(context, self)
        self._awaited: set[int] | None = None  # keys of nodes that have not reported their copies; None: none was asked
        self._kept: list[Kept] = []
        self._fetch: _Fetch | None = None

    # --- who keeps whose ----------------------------------------------------------------------------------------

    def buddy_of(self, place: int) -> dict[str, Any]:
        """Return where the node of a place sends copies, as {"node": place, "address", "port"}; empty for nowhere."""
        buddy = self._buddies.get(place)
        return {} if buddy is None else self._address_of(self._places.at(buddy), buddy)

    def _renew(self, node: Node) -> None:
        """Tell the nodes that send copies to `node` that its copier has another port."""
        for other in self._nodes.values():
            place = other.member.place
            if place >= 0 and place != node.member.place:
                to = self.buddy_of(place)
                if to.get("node") == node.member.place:
                    other.send("buddy", to=to)

    def _address_of(self, node: Node | None, place: int) -> dict[str, Any]:
        """Return the node, address and port of a copier, `node` being `place`; empty if no copier listens."""
        if node is None or not node.copier_port:
            return {}
        return {"node": place, "address": node.address, "port": node.copier_port}

    def continue_attempt(self, lineage: str) -> None:
        """Continue an attempt under this head, with the present places. Choose the buddies."""
        self._awaited = None
        self._fetch = None
        self.lineage = lineage
        if self._context.copies:
            self._buddies = buddies({place: node.topology for place, node in self._places.all().items()})

    def begin_attempt(self, lineage: str, before: str) -> None:
        """Begin an attempt with the present places.

        Args:
            lineage: the lineage of the attempt.
            before: the lineage of the steps in memory; empty if there are none.
        """
        kind, step, _ = self._context.pages.prepared
        resumed = step if kind.in_memory or kind is Resume.UNDECIDED else NONE
        for node in self._standing_by():
            node.send("keep", lineage=lineage, before=before, step=resumed)
        self.continue_attempt(lineage)

    def _decided(self, kind: Resume) -> None:
        """Have standbys drop their copies if the ranks turn out not to begin from memory."""
        if not kind.in_memory and kind is not Resume.UNDECIDED:
            for node in self._standing_by():
                node.send("keep", lineage=self.lineage, before="", step=NONE)

    def _standing_by(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.member.place < 0 and node.copier_port]

    # --- what is there ------------------------------------------------------------------------------------------

    def ask_kept(self, lineage: str) -> bool:
        """Ask the nodes what they keep, the first time that this is called between two attempts.

        Nothing is asked where copies cannot help: there are none, no rank or every rank has lost its snapshot, or the
        number of nodes has changed.

        Args:
            lineage: the lineage of the steps in memory; empty if there are none.

        Returns:
            Whether nothing had to be asked, or all asked nodes have answered or are gone.
        """
        is_same_size = nodes_of(lineage) == self._roster.wanted  # copies fit only the same number of ranks
        if not self._context.copies or not lineage or not is_same_size or not self._lacking():
            return True
        if self._awaited is None:
            self._number += 1
            self._kept = []
            able = {key: node for key, node in self._nodes.items() if node.copier_port}
            self._awaited = set(able)
            for node in able.values():
                node.send("copies", number=self._number, lineage=lineage)
        self._awaited &= self._nodes.keys()
        return not self._awaited

    def _lacking(self) -> bool:
        """Return whether some ranks, but not all, have no snapshot in the memory of their own node.

        If all ranks lack theirs, copies cannot complete a step.
        """
        has = [max(page.slot_steps()) != NONE for page in self._context.pages.pages]
        return any(has) and not all(has)

    def handle_message(self, node: Node, name: str, message: Mapping[str, Any]) -> bool:
        """Handle a message of a node.

        Returns:
            False if the message is not about copies.

        Raises:
            ValueError: the message is malformed.
            TypeError: the message is malformed.
            KeyError: a field of the message is missing, which `messages.check` refuses before.
            OverflowError: a step of the message is infinite.
        """
        if name == "copier":
            moved = node.copier_port != message["port"]
            node.copier_port = message["port"]
            node.copier_lineage = message["lineage"]
            node.wants_copies_every = message["every"]
            if moved:
                self._renew(node)
        elif name == "copies":
            self._on_copies(node, message)
        elif name == "fetch_planned":
            self._on_fetch_planned(node, message)
        elif name == "fetched":
            self._on_fetched(node, message)
        else:
            return False
        return True

    def _on_copies(self, node: Node, message: Mapping[str, Any]) -> None:
        """Note which copies a node keeps. `held` maps each rank, as a text, to the list of its steps."""
        if message["number"] != self._number or self._awaited is None or node.member.key not in self._awaited:
            return
        self._awaited.discard(node.member.key)
        ranks = len(self._context.pages)
        for rank, steps in message["held"].items():
            if 0 <= int(rank) < ranks:
                self._kept += [Kept(int(rank), int(step), self.keeper_number(node)) for step in steps]

    def keeper_number(self, node: Node) -> int:
        """Return the keeper number of a node, by which `Kept` and the plan name it.

        A node that keeps copies of ranks that it runs now fetches these copies from itself.
        """
        return self._roster.wanted + node.member.key

    def kept(self) -> list[Kept]:
        """Return the copies that nodes keep, `node` being a keeper number; nothing before all nodes have answered."""
        return self._kept if self._awaited is not None and not self._awaited else []

    # --- fetching copies ----------------------------------------------------------------------------------------

    def fetch(self, plan: RecoveryPlan, planned: Planned, done: Done) -> None:
        """Have nodes fetch the snapshots that their own ranks lack, for the attempt that begins.

        Returns at once: `poll` sends the requests. A fetch that has not ended is dropped.

        Args:
            plan: where each snapshot comes from.
            planned: called before the nodes read anything; see `Planned`.
            done: called at the end; see `Done`.
        """
        self._begin_fetch(plan, hosts={}, planned=planned, done=done)

    def save_lost(self, newer_than: int, done: Callable[[], None]) -> None:
        """Have the snapshots of lost nodes' ranks restored on the nodes that keep copies of them.

        Args:
            newer_than: only a newer step than this one is restored.
            done: called once the step is restored, or cannot be. It is not called if an attempt begins before.
        """
        self.lost_snapshots.make_whole(newer_than, done)

    def fetch_for_lost(self, plan: RecoveryPlan, hosts: Mapping[int, int], done: Done) -> None:
        """Have the nodes in `hosts` fetch snapshots of ranks that are not theirs, because those ranks' nodes are lost.

        Returns at once: `poll` sends the requests. A fetch that has not ended is dropped.

        Args:
            plan: where each snapshot comes from.
            hosts: rank -> the place whose node fetches the rank's snapshot. A rank that is missing is fetched by its
                own place.
            done: called at the end; see `Done`.
        """
        self._begin_fetch(plan, hosts=hosts, planned=lambda _: None, done=done)

    def _begin_fetch(self, plan: RecoveryPlan, *, hosts: Mapping[int, int], planned: Planned, done: Done) -> None:
        """Note which node is to fetch what. Nothing is sent before the next `poll`."""
        wanted: dict[int, dict[int, int]] = {}
        key_of_keeper = {self.keeper_number(node): key for key, node in self._nodes.items()}
        for (rank, _), source in plan.sources.items():
            if source.rung is Rung.PEER:
                place = hosts.get(rank, rank // self._context.ranks_each)
                wanted.setdefault(place, {})[rank] = key_of_keeper.get(source.node, NONE)
        self._number += 1
        until = self._context.clock() + _PATIENCE_SECONDS
        self._fetch = _Fetch(
            lineage=self.lineage,
            step=plan.step,
            wanted=wanted,
            planned=planned,
            done=done,
            number=self._number,
            until=until,
            for_others=bool(hosts),
        )

    def place_of_keeper(self, number: int) -> int:
        """Return the place of the node with the keeper number `number`; NONE if the node has none or is gone."""
        return next((node.member.place for node in self._nodes.values() if self.keeper_number(node) == number), NONE)

    def poll(self) -> None:
        """Send the requests of a fetch to the nodes that have begun the attempt, or give the fetch up."""
        self.lost_snapshots.poll()
        fetch = self._fetch
        if fetch is not None and fetch.for_others and not fetch.asked.items() <= self._keys_by_place().items():
            self._end(fetch, "the node that keeps copies of it is lost, too")
        elif fetch is not None and len(fetch.asked) < len(fetch.wanted):
            self._send_requests(fetch)

    def _keys_by_place(self) -> dict[int, int]:
        return {place: node.member.key for place, node in self._places.all().items()}

    def _send_requests(self, fetch: _Fetch) -> None:
        """Tell each node to fetch as soon as all nodes that take part have begun the attempt."""
        for place, ranks in fetch.wanted.items():
            node = self._places.at(place)
            if node is None and not fetch.for_others:  # the attempt is over; the next one makes a new plan
                self._fetch = None
                return
            keepers = [self._nodes[key] for key in set(ranks.values()) if key in self._nodes]
            if node is None or len(keepers) < len(set(ranks.values())):
                self._end(fetch, "a node that keeps copies is gone")
                return
            if place in fetch.asked:
                continue
            suppliers = self._suppliers(place, fetch)
            taking_part = [node, *keepers, *suppliers]
            if all(other.copier_lineage == fetch.lineage for other in taking_part):
                fetch.asked[place] = node.member.key
                self._send(node=node, fetch=fetch, ranks=ranks, suppliers=suppliers)
        if len(fetch.asked) < len(fetch.wanted) and self._context.clock() > fetch.until:
            self._end(fetch, f"a node that takes part has not begun the attempt in {_PATIENCE_SECONDS:g} s")

    def _suppliers(self, place: int, fetch: _Fetch) -> list[Node]:
        """Return nodes whose own ranks hold the step, beginning after `place` so that the load is spread.

        A node that fetches for ranks of other nodes also reads from itself.
        """
        wanted = self._roster.wanted
        pages = self._context.pages
        after = [(place + 1 + offset) % wanted for offset in range(wanted - 1)]
        if fetch.for_others:
            after.insert(0, place)
        whole = [
            other
            for other in after
            if all(fetch.step in pages[rank].slot_steps() for rank in self._places.ranks_of(other))
        ]
        found = [self._places.at(other) for other in whole[:_MOST_SUPPLIERS]]
        return [node for node in found if node is not None and node.copier_port]

    def _send(self, node: Node, fetch: _Fetch, ranks: Mapping[int, int], suppliers: list[Node]) -> None:
        """Send the message `fetch` to a node. `ranks` maps each rank to the key of the node that keeps its copy."""
        keepers = {rank: self._nodes[key] for rank, key in ranks.items()}
        node.send(
            "fetch",
            number=fetch.number,
            step=fetch.step,
            world=len(self._context.pages),
            ranks={rank: [self._address_of(keeper, keeper.member.place)] for rank, keeper in keepers.items()},
            suppliers=[self._address_of(supplier, supplier.member.place) for supplier in suppliers],
        )

    def _on_fetch_planned(self, node: Node, message: Mapping[str, Any]) -> None:
        """Note what a node will read from where, and call `planned` once all nodes have said so."""
        fetch = self._fetch
        if fetch is None or message["number"] != fetch.number or node.member.place not in fetch.wanted:
            return
        fetch.plans[node.member.place] = message["sources"]
        if len(fetch.plans) == len(fetch.wanted):
            fetch.planned([{"place": place, "sources": fetch.plans[place]} for place in sorted(fetch.plans)])

    def _on_fetched(self, node: Node, message: Mapping[str, Any]) -> None:
        """Note that a node has fetched its snapshots; end the fetch if all have, or if this one has failed."""
        fetch = self._fetch
        if fetch is None or message["number"] != fetch.number or node.member.place not in fetch.wanted:
            return
        if message["error"]:
            self._end(fetch, f"{node.name}: {message['error'][:_LONGEST_REASON]}")
            return
        fetch.brought.append(
            {
                "place": node.member.place,
                "seconds": message["seconds"],
                "bytes": message["bytes"],
                "sources": message["sources"],
            }
        )
        if len(fetch.brought) == len(fetch.wanted):
            self._end(fetch, "")

    def _end(self, fetch: _Fetch, why: str) -> None:
        """End a fetch, with the reason of a failure or an empty text."""
        self._fetch = None
        fetch.done(why, fetch.brought)
