"""Other nodes for the next attempt: more, fewer, another one in a place; asked for, or because one is lost.

Nodes change only while no rank runs, and after what memory holds was saved, where all of it is there: a node that
leaves takes its memory with it, and snapshots of so many nodes are of no use to another number of them.
"""

from __future__ import annotations

from ftlaunch.common.formatting import counted, stretches
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.copies.held_steps import HeldSteps
from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch.nodes.cluster.membership.roster import Member, Roster
from ftlaunch.nodes.cluster.nodes.node import Node


class CannotRegroup(Exception):
    """Other nodes cannot be had; the message is a sentence, and nothing has changed."""


class Regrouping:
    """Of one job."""

    def __init__(self, around: Around, roster: Roster, nodes: dict[int, Node], held: HeldSteps) -> None:
        """nodes: by key of their members."""
        self._around = around
        self._roster = roster
        self._nodes = nodes
        self._held = held
        self._short_since: float | None = around.clock()
        self._inherited = self._called = False

    # --- between two attempts -----------------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether the next attempt has other nodes than memory is of. No rank runs."""
        roster = self._roster
        if len(roster.able) < roster.least:
            self._call_off("the node that would have taken its place is gone")
        size = roster.size(self._around.clock())
        self._tell_of_call()
        if size is None:
            return False
        if not self._inherited and not roster.begun:
            self._inherited = True
            if lineage := roster.inherited():
                roster.inherit(lineage)
                self._around.pages.resize(roster.wanted * self._around.ranks_each)
                self._held.lineage = lineage
                self._held.take_up_of(self._nodes.values())
        return roster.changes(size)

    def change(self, saved: bool) -> None:
        """Let the nodes change. saved: storage has what memory holds."""
        around = self._around
        roster = self._roster
        if not saved and around.pages.newest_common() != NONE:
            self._call_off("what memory holds could not be saved")
            roster.keep()
            return
        size = roster.size(around.clock())
        if size is None:
            return
        for node in [node for node in self._nodes.values() if node.member.leaving]:
            self._dismiss(node)
        if size != roster.wanted:
            around.say(self._resized(size))
            roster.resize(size)
            around.pages.resize(size * around.ranks_each)
            for node in self._nodes.values():
                node.slots = None

    def _resized(self, size: int) -> str:
        roster = self._roster
        each = self._around.ranks_each
        ranks = f"{size * each} ranks" if size * each > 1 else "1 rank"
        nodes = counted(size, "node")
        goes_on = roster.begun or self._around.pages.newest_common() != NONE
        before = f"goes on with {nodes} instead of {roster.wanted}" if goes_on else f"begins with {nodes}"
        older = {nodes_of(node.lineage) for node in self._nodes.values() if node.slots} - {0, size}
        unused = f"; steps in memory of {max(older)} nodes are not all here, and not used" if older else ""
        return f"the job {before} ({roster.least}:{roster.most}), {ranks}{unused}"  # rank 0 says what that changes

    def _dismiss(self, node: Node) -> None:
        """A node leaves, with its memory."""
        place = node.member.place
        each = self._around.ranks_each
        if place >= 0:
            self._around.pages.forget(place * each, each)
        self._around.say(f"{node.name} leaves the job: {node.leaves}")
        node.send("dismissed", why=f"this node leaves the job, which goes on without it: {node.leaves}")
        node.connection.on_message = lambda _: None  # until it has read that, and ends
        del self._nodes[node.member.key]
        self._roster.leave(node.member.key)

    def _call_off(self, why: str) -> None:
        """Those that are to leave stay; one that was signalled has to leave all the same, and the job stops for it."""
        for node in self._nodes.values():
            if node.member.leaving:
                node.member.leaving = False
                self._around.say(f"{node.name} cannot leave: {why}")
                if node.signalled:
                    self._around.stop(node.leaves)

    # --- waiting ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See whether nodes that are needed have not come in their time."""
        now = self._around.clock()
        missing = self._roster.missing
        wait = self._around.wait
        if missing <= 0:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
            self._tell_of_waiting(missing)
        elif now - self._short_since > wait:
            self._short_since = now
            nodes = "1 node is" if missing == 1 else f"{missing} nodes are"
            self._around.stop(f"{nodes} missing, and none has come in {wait:g} s (--node-wait)")

    def _tell_of_waiting(self, missing: int) -> None:
        roster = self._roster
        at_most = f"for {self._around.wait:g} s at most (--node-wait)"
        if roster.least == roster.most:
            self._around.say(f"waiting for a node for place {stretches(roster.vacant)}, {at_most}")
        else:
            nodes = "1 more node" if missing == 1 else f"{missing} more nodes"
            self._around.say(f"waiting for {nodes}, of {roster.least} that the job has at least, {at_most}")

    def _tell_of_call(self) -> None:
        roster = self._roster
        if roster.called_since is not None and not self._called:
            self._around.say(
                f"{counted(len(roster.able), 'node')} of {roster.least}:{roster.most} here: the job begins so in"
                f" {roster.last_call:g} s, or with {roster.most} as soon as they are here"
            )
        self._called = roster.called_since is not None

    # --- requests -----------------------------------------------------------------------------------------------

    def grow(self) -> str:
        """Take in those that stand by; returns what is done. Raises CannotRegroup."""
        roster = self._roster
        waiting = [one for one in roster.standing_by if one.ready]
        if not roster.begun or roster.wanted >= roster.most:
            has = f"it has all of its {roster.most} nodes" if roster.begun else "it has not begun yet"
            raise CannotRegroup(f"cannot take in nodes: {has}")
        if not waiting:
            raise CannotRegroup("cannot take in nodes: none stands by; start ftlaunch on another node first")
        size = min(roster.wanted + len(waiting), roster.most)
        self._around.pause()
        return f"all ranks stop at one step, which is saved; then the job goes on with {counted(size, 'node')}"

    def drain(self, name: str, why: str) -> str:
        """Let a node leave; returns what is done. name: a place, or a host. why: who asks. Raises CannotRegroup."""
        found = [node for node in self._nodes.values() if name in (str(node.member.place), node.host)]
        by_place = [node for node in found if str(node.member.place) == name]
        if len(by_place or found) != 1:
            known = ", ".join(f"{node.member.place} ({node.host})" for node in self._placed())
            many = f"{len(found)} nodes have this host: give a place" if found else "no node has this place or host"
            raise CannotRegroup(f"cannot drain `{name}`: {many}; the job has {known}")
        return self._let_leave((by_place or found)[0], why)

    def signalled(self, node: Node, why: str) -> None:
        """A node was told to end: it leaves alone where others can go on without it, else the whole job stops."""
        try:
            sentence = self._let_leave(node, why)
        except CannotRegroup as refusal:
            self._around.say(f"{refusal}: the job stops")
            self._around.stop(why)
            return
        node.signalled = True
        self._around.say(f"{why}: {sentence}")

    def _placed(self) -> list[Node]:
        placed = [node for node in self._nodes.values() if node.member.place >= 0]
        return sorted(placed, key=lambda node: node.member.place)

    def _let_leave(self, node: Node, why: str) -> str:
        roster = self._roster
        member = node.member
        left = len([one for one in roster.able if one is not member])
        if left < roster.least:
            others = "none that stands by is ready yet" if roster.standing_by else "none stands by"
            why = f"{left} would be left, the job has at least {roster.least}, and {others}"
            raise CannotRegroup(f"cannot drain {node.name}: {why}")
        again = member.leaving
        member.leaving = True
        node.leaves = why
        if member.place < 0:
            self._dismiss(node)
            return f"{node.name} leaves; it stood by"
        if not again:
            self._around.pause()
        return self._said_of(member, left)

    def _said_of(self, member: Member, left: int) -> str:
        size = min(left, self._roster.most)
        how = (
            "another node takes its place"
            if size == self._roster.wanted
            else f"the job goes on with {counted(size, 'node')}"
        )
        return f"all ranks stop at one step, which is saved; then node {member.place} leaves, and {how}"
