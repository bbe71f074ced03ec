"""Changes the nodes between two attempts: more nodes, fewer, or another node in a place.

The reason is a request (`ftctl nodes grow` and `drain`, or a signal to an agent), or a lost node. Nodes change only
while no rank runs, and after the newest step in memory was saved if memory holds all of it. A node that leaves takes
its memory along, and snapshots of one number of nodes do not fit another number. Runs in the head's event loop.
"""

from __future__ import annotations

from ftlaunch.common.formatting import counted, stretches
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.copies.held_steps import HeldSteps
from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch.nodes.cluster.membership.roster import Member, Roster
from ftlaunch.nodes.cluster.nodes.node import Node


class CannotRegroup(Exception):
    """The nodes cannot change as asked, and nothing has changed. The message is a sentence."""


class Regrouping:
    """The changes of nodes of one job."""

    def __init__(self, context: ClusterContext, roster: Roster, nodes: dict[int, Node], held: HeldSteps) -> None:
        """Begin without nodes.

        Args:
            context: what the classes about nodes share.
            roster: the members and their places.
            nodes: the connected nodes, by the key of their members.
            held: loads the steps in the nodes' memory.
        """
        self._context = context
        self._roster = roster
        self._nodes = nodes
        self._held = held
        self._short_since: float | None = context.clock()  # since when the job waits for nodes that it needs
        self._inherited = False  # whether the nodes' memory was considered before the first attempt
        self._called = False  # whether the terminal was told of the last call for more nodes

    # --- between two attempts -----------------------------------------------------------------------------------

    def due(self) -> bool:
        """Return whether the nodes must change before the next attempt. Call this only while no rank runs."""
        roster = self._roster
        if len(roster.able) < roster.least:
            self._call_off("the node that would have taken its place is gone")
        size = roster.size(self._context.clock())
        self._announce_last_call()
        if size is None:
            return False
        if not self._inherited and not roster.begun:
            self._inherited = True
            if lineage := roster.inherited():
                roster.inherit(lineage)
                self._context.pages.resize(roster.wanted * self._context.ranks_each)
                self._held.lineage = lineage
                self._held.load_steps(self._nodes.values())
        return roster.changes(size)

    def change(self, saved: bool) -> None:
        """Let the nodes change, or call the change off if memory could not be saved.

        Args:
            saved: whether storage holds the newest step that memory holds.
        """
        context = self._context
        roster = self._roster
        if not saved and context.pages.newest_common() != NONE:
            self._call_off("what memory holds could not be saved")
            roster.keep()
            return
        size = roster.size(context.clock())
        if size is None:
            return
        for node in [node for node in self._nodes.values() if node.member.leaving]:
            self._dismiss(node)
        if size != roster.wanted:
            context.say(self._resize_sentence(size))
            roster.resize(size)
            context.pages.resize(size * context.ranks_each)
            for node in self._nodes.values():
                node.slots = None

    def _resize_sentence(self, size: int) -> str:
        """Return a sentence about the new number of nodes. Rank 0 explains what the change means for the training."""
        roster = self._roster
        each = self._context.ranks_each
        ranks = f"{size * each} ranks" if size * each > 1 else "1 rank"
        nodes = counted(size, "node")
        goes_on = roster.begun or self._context.pages.newest_common() != NONE
        before = f"goes on with {nodes} instead of {roster.wanted}" if goes_on else f"begins with {nodes}"
        older = {nodes_of(node.lineage) for node in self._nodes.values() if node.slots} - {0, size}
        unused = f"; steps in memory of {max(older)} nodes are not all here, and not used" if older else ""
        return f"the job {before} ({roster.least}:{roster.most}), {ranks}{unused}"

    def _dismiss(self, node: Node) -> None:
        """Let a node leave, together with its memory."""
        place = node.member.place
        each = self._context.ranks_each
        if place >= 0:
            self._context.pages.forget(place * each, each)
        self._context.say(f"{node.name} leaves the job: {node.leaves}")
        node.send("dismissed", why=f"this node leaves the job, which goes on without it: {node.leaves}")
        node.connection.on_message = lambda _: None  # the node reads the message, and ends
        del self._nodes[node.member.key]
        self._roster.leave(node.member.key)

    def _call_off(self, why: str) -> None:
        """Keep the nodes that were to leave. The job stops for one that a signal has told to leave."""
        for node in self._nodes.values():
            if node.member.leaving:
                node.member.leaving = False
                self._context.say(f"{node.name} cannot leave: {why}")
                if node.signalled:
                    self._context.stop(node.leaves)

    # --- waiting ------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Stop the job if nodes that it needs have not come in time."""
        now = self._context.clock()
        missing = self._roster.missing
        wait = self._context.wait_seconds
        if missing <= 0:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
            self._announce_waiting(missing)
        elif now - self._short_since > wait:
            self._short_since = now
            nodes = "1 node is" if missing == 1 else f"{missing} nodes are"
            self._context.stop(f"{nodes} missing, and none has come in {wait:g} s (--node-wait)")

    def _announce_waiting(self, missing: int) -> None:
        roster = self._roster
        at_most = f"for {self._context.wait_seconds:g} s at most (--node-wait)"
        if roster.least == roster.most:
            self._context.say(f"waiting for a node for place {stretches(roster.vacant)}, {at_most}")
        else:
            nodes = "1 more node" if missing == 1 else f"{missing} more nodes"
            self._context.say(f"waiting for {nodes}, of {roster.least} that the job has at least, {at_most}")

    def _announce_last_call(self) -> None:
        roster = self._roster
        if roster.called_since is not None and not self._called:
            self._context.say(
                f"{counted(len(roster.able), 'node')} of {roster.least}:{roster.most} here: the job begins so in"
                f" {roster.last_call_seconds:g} s, or with {roster.most} as soon as they are here"
            )
        self._called = roster.called_since is not None

    # --- requests -----------------------------------------------------------------------------------------------

    def grow(self) -> str:
        """Take in nodes that stand by.

        Returns:
            A sentence that says what is done.

        Raises:
            CannotRegroup: no node can be taken in.
        """
        roster = self._roster
        waiting = [member for member in roster.standing_by if member.ready]
        if not roster.begun or roster.wanted >= roster.most:
            has = f"it has all of its {roster.most} nodes" if roster.begun else "it has not begun yet"
            raise CannotRegroup(f"cannot take in nodes: {has}")
        if not waiting:
            raise CannotRegroup("cannot take in nodes: none stands by; start ftlaunch on another node first")
        size = min(roster.wanted + len(waiting), roster.most)
        self._context.pause()
        return f"all ranks stop at one step, which is saved; then the job goes on with {counted(size, 'node')}"

    def drain(self, name: str, why: str) -> str:
        """Let a node leave.

        Args:
            name: a place or a host.
            why: who asks, and why.

        Returns:
            A sentence that says what is done.

        Raises:
            CannotRegroup: there is no such node, or the job cannot go on without it.
        """
        found = [node for node in self._nodes.values() if name in (str(node.member.place), node.host)]
        by_place = [node for node in found if str(node.member.place) == name]
        if len(by_place or found) != 1:
            known = ", ".join(f"{node.member.place} ({node.host})" for node in self._placed())
            many = f"{len(found)} nodes have this host: give a place" if found else "no node has this place or host"
            raise CannotRegroup(f"cannot drain `{name}`: {many}; the job has {known}")
        return self._let_leave((by_place or found)[0], why)

    def drain_on_signal(self, node: Node, why: str) -> None:
        """Let a node that a signal has told to end leave; stop the whole job if it cannot go on without the node."""
        try:
            sentence = self._let_leave(node, why)
        except CannotRegroup as refusal:
            self._context.say(f"{refusal}: the job stops")
            self._context.stop(why)
            return
        node.signalled = True
        self._context.say(f"{why}: {sentence}")

    def _placed(self) -> list[Node]:
        placed = [node for node in self._nodes.values() if node.member.place >= 0]
        return sorted(placed, key=lambda node: node.member.place)

    def _let_leave(self, node: Node, why: str) -> str:
        """Begin to let a node leave. Return a sentence that says what is done. Raises CannotRegroup."""
        roster = self._roster
        member = node.member
        left = len([other for other in roster.able if other is not member])
        if left < roster.least:
            others = "none that stands by is ready yet" if roster.standing_by else "none stands by"
            why = f"{left} would be left, the job has at least {roster.least}, and {others}"
            raise CannotRegroup(f"cannot drain {node.name}: {why}")
        was_leaving = member.leaving
        member.leaving = True
        node.leaves = why
        if member.place < 0:
            self._dismiss(node)
            return f"{node.name} leaves; it stood by"
        if not was_leaving:
            self._context.pause()
        return self._drain_sentence(member, left)

    def _drain_sentence(self, member: Member, left: int) -> str:
        size = min(left, self._roster.most)
        how = (
            "another node takes its place"
            if size == self._roster.wanted
            else f"the job goes on with {counted(size, 'node')}"
        )
        return f"all ranks stop at one step, which is saved; then node {member.place} leaves, and {how}"
