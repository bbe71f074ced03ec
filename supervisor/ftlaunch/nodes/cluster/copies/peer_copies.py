"""Copies of snapshots in the memory of other nodes: who keeps whose, what is there, and bringing it where it is needed.

What a node keeps is asked of it once no rank runs, and from then on it stays so until the next attempt. Copies carry
the lineage of the attempt that has made them: those of two attempts are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.memory.recovery_plan import NONE, Kept, RecoveryPlan, Rung
from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.copies.lost_snapshots import LostSnapshots
from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.nodes.placed_nodes import PlacedNodes
from ftlaunch.nodes.peers.plan.ring import buddies
from ftlaunch_contract.protocol import Resume

_MOST_SUPPLIERS = 8  # nodes that one node reads from at once, besides those that keep its ranks' copies
_PATIENCE = 10.0  # seconds
_LONGEST_REASON = 400  # characters

Planned = Callable[[list[dict[str, Any]]], None]
"""Called before the nodes have read anything: what is to come from where."""
Done = Callable[[str, list[dict[str, Any]]], None]
"""Told how the bringing ended: why not, or nothing; and what came from where."""


@dataclass
class _Fetch:
    """Snapshots that nodes fetch for their ranks."""

    lineage: str
    step: int
    wanted: dict[int, dict[int, int]]
    """place of the node that fetches -> rank -> key of the node that keeps its copy"""
    planned: Planned
    done: Done
    number: int
    until: float
    """when it is given up, unless all nodes that take part know of the attempt"""
    for_others: bool
    """it is for ranks of other nodes than those that fetch, and no attempt waits for it"""
    asked: dict[int, int] = field(default_factory=dict)
    """place -> key of its node that was told to fetch"""
    brought: list[dict[str, Any]] = field(default_factory=list)
    """a row for each node that has its snapshots: place, seconds, bytes, sources"""
    plans: dict[int, list[Any]] = field(default_factory=dict)
    """place -> what its node is to read from where"""


class PeerCopies:
    """Of one job."""

    def __init__(self, around: Around, roster: Roster, nodes: Mapping[int, Node], places: PlacedNodes) -> None:
        """nodes: by key of their members."""
        self._around = around
        self._roster = roster
        self._nodes = nodes
        self._places = places
        self.ranks_each = around.ranks_each
        around.pages.on_decided = self._decided
        self._number = 0
        self.lineage = ""
        self._buddies = dict[int, int]()
        self.lost_snapshots = LostSnapshots(around, self)
        self._awaited: set[int] | None = None  # keys of nodes that have not said what they keep; None: nobody was asked
        self._kept: list[Kept] = []
        self._fetch: _Fetch | None = None

    # --- who keeps whose ----------------------------------------------------------------------------------------

    def buddy_of(self, place: int) -> dict[str, Any]:
        """Where the node of a place sends copies: node, address and port; empty where there is nobody."""
        buddy = self._buddies.get(place)
        return {} if buddy is None else self._address_of(self._places.at(buddy), buddy)

    def _renew(self, node: Node) -> None:
        """A node's copier listens at another port: whoever sends to it is told."""
        for other in self._nodes.values():
            place = other.member.place
            if place >= 0 and place != node.member.place:
                to = self.buddy_of(place)
                if to.get("node") == node.member.place:
                    other.send("buddy", to=to)

    def _address_of(self, node: Node | None, number: int) -> dict[str, Any]:
        if node is None or not node.copier_port:
            return {}
        return {"node": number, "address": node.address, "port": node.copier_port}

    def goes_on(self, lineage: str) -> None:
        """An attempt goes on under this head, with the places that nodes have now."""
        self._awaited = None
        self._fetch = None
        self.lineage = lineage
        if self._around.copies:
            self._buddies = buddies({place: node.topology for place, node in self._places.all().items()})

    def begun(self, lineage: str, before: str) -> None:
        """An attempt begins, with the places that nodes have now: what was known is over.

        before: the lineage of the steps in memory, or nothing.
        """
        kind, step, _ = self._around.pages.prepared
        resumed = step if kind.in_memory or kind is Resume.UNDECIDED else NONE
        for node in self._standing_by():
            node.send("keep", lineage=lineage, before=before, step=resumed)
        self.goes_on(lineage)

    def _decided(self, kind: Resume) -> None:
        """It is known with what the ranks begin: where it is not memory, copies are of no use."""
        if not kind.in_memory and kind is not Resume.UNDECIDED:
            for node in self._standing_by():
                node.send("keep", lineage=self.lineage, before="", step=NONE)

    def _standing_by(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.member.place < 0 and node.copier_port]

    # --- what is there ------------------------------------------------------------------------------------------

    def known(self, lineage: str) -> bool:
        """Whether it is known what nodes keep for ranks whose memory is lost; asks them, once for each restart.

        lineage: of the steps in memory; empty where there are none.
        """
        same = nodes_of(lineage) == self._roster.wanted  # copies are of so many ranks, and of no other number of them
        if not self._around.copies or not lineage or not same or not self._lacking():
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
        """Whether some ranks have nothing in the memory of their own node; where none has, there is no step of all."""
        has = [max(page.slot_steps()) != NONE for page in self._around.pages.pages]
        return any(has) and not all(has)

    def take(self, node: Node, name: str, message: Mapping[str, Any]) -> bool:
        """A message of a node; False where it is about something else. Raises ValueError or TypeError for nonsense."""
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
        if message["number"] != self._number or self._awaited is None or node.member.key not in self._awaited:
            return
        self._awaited.discard(node.member.key)
        ranks = len(self._around.pages)
        for rank, steps in message["held"].items():
            if 0 <= int(rank) < ranks:
                self._kept += [Kept(int(rank), int(step), self._keeper(node)) for step in steps]

    def _keeper(self, node: Node) -> int:
        """Tells a node from all others as one that keeps copies. It is no place: a copy is no snapshot of a rank's own.

        A node that keeps copies of ranks that it has now fetches them from itself.
        """
        return self._roster.wanted + node.member.key

    def kept(self) -> list[Kept]:
        """What nodes keep for ranks of other nodes."""
        return self._kept if self._awaited is not None and not self._awaited else []

    # --- bringing it --------------------------------------------------------------------------------------------

    def fetch(self, plan: RecoveryPlan, planned: Planned, done: Done) -> None:
        """Have nodes whose ranks lack their snapshots fetch them."""
        self._bring(plan, hosts={}, planned=planned, done=done)

    def save_lost(self, newer_than: int, done: Callable[[], None]) -> None:
        """See PeerMemory."""
        self.lost_snapshots.make_whole(newer_than, done)

    def bring(self, plan: RecoveryPlan, hosts: Mapping[int, int], done: Done) -> None:
        """Have nodes fetch what a plan takes from other nodes. hosts: rank -> place, where it is not the rank's own."""
        self._bring(plan, hosts=hosts, planned=lambda _: None, done=done)

    def _bring(self, plan: RecoveryPlan, *, hosts: Mapping[int, int], planned: Planned, done: Done) -> None:
        wanted: dict[int, dict[int, int]] = {}
        by_number = {self._keeper(node): key for key, node in self._nodes.items()}
        for (rank, _), source in plan.sources.items():
            if source.rung is Rung.PEER:
                place = hosts.get(rank, rank // self._around.ranks_each)
                wanted.setdefault(place, {})[rank] = by_number.get(source.node, NONE)
        self._number += 1
        until = self._around.clock() + _PATIENCE
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
        """The place of the node that is `node` of a Kept; NONE: it has none, or is gone."""
        return next((node.member.place for node in self._nodes.values() if self._keeper(node) == number), NONE)

    def look(self) -> None:
        """Tell nodes to fetch once all that take part know of the attempt."""
        self.lost_snapshots.look()
        fetch = self._fetch
        if fetch is not None and fetch.for_others and not fetch.asked.items() <= self._keys().items():
            self._end(fetch, "the node that keeps copies of it is lost, too")
        elif fetch is not None and len(fetch.asked) < len(fetch.wanted):
            self._go_on(fetch)

    def _keys(self) -> dict[int, int]:
        return {place: node.member.key for place, node in self._places.all().items()}

    def _go_on(self, fetch: _Fetch) -> None:
        """Ask those that can fetch now."""
        for place, ranks in fetch.wanted.items():
            node = self._places.at(place)
            holders = {key: self._nodes.get(key) for key in ranks.values()}
            if node is None and not fetch.for_others:  # its attempt is over: the next one plans with what is kept
                self._fetch = None
                return
            if node is None or None in holders.values():
                self._end(fetch, "a node that keeps copies is gone")
                return
            suppliers = self._suppliers(place, fetch)
            taking_part = [node, *(one for one in holders.values() if one is not None), *suppliers]
            if place in fetch.asked or any(one.copier_lineage != fetch.lineage for one in taking_part):
                continue
            fetch.asked[place] = node.member.key
            self._send(node, fetch, ranks, suppliers)
        if len(fetch.asked) < len(fetch.wanted) and self._around.clock() > fetch.until:
            self._end(fetch, f"a node that takes part has not begun the attempt in {_PATIENCE:g} s")

    def _suppliers(self, place: int, fetch: _Fetch) -> list[Node]:
        """Nodes whose own ranks hold the step: the next ones by place, so that not all read from the first.

        A node that fetches for ranks of other nodes has much of that itself.
        """
        wanted = self._roster.wanted
        pages = self._around.pages
        after = [(place + 1 + offset) % wanted for offset in range(wanted - 1)]
        after = [place, *after] if fetch.for_others else after
        whole = [
            one for one in after if all(fetch.step in pages[rank].slot_steps() for rank in self._places.ranks_of(one))
        ]
        found = [self._places.at(one) for one in whole[:_MOST_SUPPLIERS]]
        return [node for node in found if node is not None and node.copier_port]

    def _send(self, node: Node, fetch: _Fetch, ranks: Mapping[int, int], suppliers: list[Node]) -> None:
        holders = {rank: self._nodes[key] for rank, key in ranks.items()}
        node.send(
            "fetch",
            number=fetch.number,
            step=fetch.step,
            world=len(self._around.pages),
            ranks={rank: [self._address_of(one, one.member.place)] for rank, one in holders.items()},
            suppliers=[self._address_of(one, one.member.place) for one in suppliers],
        )

    def _on_fetch_planned(self, node: Node, message: Mapping[str, Any]) -> None:
        """A node knows from where it reads what its ranks lack; once all do, it is told."""
        fetch = self._fetch
        if fetch is None or message["number"] != fetch.number or node.member.place not in fetch.wanted:
            return
        fetch.plans[node.member.place] = message["sources"]
        if len(fetch.plans) == len(fetch.wanted):
            fetch.planned([{"place": place, "sources": fetch.plans[place]} for place in sorted(fetch.plans)])

    def _on_fetched(self, node: Node, message: Mapping[str, Any]) -> None:
        """A node has fetched what its ranks lacked, or could not."""
        fetch = self._fetch
        if fetch is None or message["number"] != fetch.number or node.member.place not in fetch.wanted:
            return
        if message["error"]:
            self._end(fetch, f"{node.name}: {message['error'][:_LONGEST_REASON]}")
            return
        told = {name: message[name] for name in ("seconds", "bytes", "sources")}
        fetch.brought.append({"place": node.member.place, **told})
        if len(fetch.brought) == len(fetch.wanted):
            self._end(fetch, "")

    def _end(self, fetch: _Fetch, why: str) -> None:
        self._fetch = None
        fetch.done(why, fetch.brought)
