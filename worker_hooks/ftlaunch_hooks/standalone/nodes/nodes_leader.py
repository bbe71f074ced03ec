"""What the first rank of each node does for its node, and all of them together for the job.

At step boundaries the nodes exchange a few numbers (exchange.py), from which each works out the same orders for its own
ranks. Only the first node's first rank touches what is common on storage.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from ftlaunch_contract.checkpoint import tensor_file, writer
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.pages.words import INTENT
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone import resume_choice
from ftlaunch_hooks.standalone.leader import NodeLeader
from ftlaunch_hooks.standalone.nodes import shared_directory
from ftlaunch_hooks.standalone.nodes.agreement import NodeHolds, common_step, set_otherwise
from ftlaunch_hooks.standalone.nodes.common_save import CommonSave
from ftlaunch_hooks.standalone.nodes.exchange import NodeSays, NodesSay, Rhythm, next_save, rhythm
from ftlaunch_hooks.standalone.nodes.leader_group import PendingMaximum
from ftlaunch_hooks.standalone.nodes.links import Links
from ftlaunch_hooks.standalone.nodes.node_memory import NodeMemory
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.settings import AloneError, Settings
from ftlaunch_hooks.tensors.json_codec import StateError

_AHEAD = 2  # steps: the orders for the next step may be written already


class NodesLeader(NodeLeader):
    """The first rank of one node of several."""

    def __init__(self, peers: Peers, settings: Settings, memory: NodeMemory, links: Links) -> None:
        super().__init__(peers, settings)
        self._memory, self._links = memory, links
        self._first = peers.rank == 0
        self._save = CommonSave(links.saves, first=self._first)
        self._pending: PendingMaximum | None = None
        self._rhythm, self._next = Rhythm(1, at_once=True), 0  # _next: the step of the next exchange
        self._every, self._every_from = settings.memory_interval.steps, NONE

    # --- where to resume --------------------------------------------------------------------------------------

    def decide_resume(self) -> None:
        """All nodes agree; tell the ranks of this one. Raises AloneError."""
        holds = NodeHolds(self._settings.digest(), self._memory.lineage(), self._peers.common_steps())
        nodes = [NodeHolds.of(numbers) for numbers in self._links.meeting.gather(holds.numbers())]
        other = set_otherwise(nodes)
        if other is not None:
            raise AloneError(
                f"cannot attach: the FTLAUNCH_* variables of node {other} are not those of node 0; the interval of"
                " snapshots, those of saves and keeping, and how the job begins must be the same on all nodes"
            )
        self._check_shared()
        kind, step, lineage = self._first_chooses(common_step(nodes))
        try:
            self._memory.begin_lineage(lineage, step if kind == Resume.MEMORY else NONE, self._peers.pages)
        except OSError as error:
            raise AloneError(f"cannot attach: {self._memory.directory}: {error.strerror}") from None
        self._orders.decide_resume(kind, step)

    def _check_shared(self) -> None:
        """All nodes must see the checkpoint directory of the first one. Raises AloneError, on all of them."""
        directory, mark, error = self._settings.checkpoint_dir, 0, ""
        if self._first:
            try:
                self._take_custody()
                mark = secrets.randbits(62)
                shared_directory.leave_mark(directory, mark)
            except AloneError as problem:
                error = str(problem)
            except OSError as problem:
                error = f"cannot attach: cannot write to {directory}: {problem.strerror}"
        [mark], error = self._links.saves.hear_first([mark], error)
        if error:
            raise AloneError(error)
        seen = self._links.meeting.gather([shared_directory.sees_mark(directory, mark)])
        if self._first:
            shared_directory.remove_mark(directory, mark)
        if blind := [place for place, answer in enumerate(seen) if answer == [0]]:
            raise AloneError(
                f"cannot attach: the nodes share no checkpoint directory: node {blind[0]} does not see what node 0"
                f" writes (here: {directory}); give all nodes one on shared storage, by FTLAUNCH_CHECKPOINT_DIR"
            )

    def _first_chooses(self, memory_step: int) -> tuple[Resume, int, int]:
        """Where to resume, and the lineage that begins there: the first node looks at storage. Raises AloneError."""
        kind, step, lineage, error = Resume.UNDECIDED, NONE, 0, ""
        if self._first:
            try:
                chosen = resume_choice.choose_beside(memory_step, self._settings.checkpoint_dir, say)
                kind, step = chosen or self._choose_from_storage()
                if kind == Resume.MEMORY:
                    say(f"all nodes hold step {step} in memory: the job goes on from there")
                lineage = 1 + secrets.randbits(61)
            except AloneError as problem:
                error = str(problem)
            except OSError as problem:
                error = f"cannot attach: cannot read {self._settings.checkpoint_dir}: {problem.strerror}"
        (number, step, lineage), error = self._links.saves.hear_first([kind, step, lineage], error)
        if error:
            raise AloneError(error)
        return Resume(number), step, lineage

    # --- at step boundaries -----------------------------------------------------------------------------------

    def announce(self, step: int) -> None:
        """`step` steps are completed: now and then, speak with the other nodes. Raises AloneError, or StateError."""
        if step < self._next or self._orders.stop_at != NONE:
            return
        if self._pending is not None:
            self._heed(step, self._pending)
            if self._orders.stop_at != NONE:
                return
        self._pending = self._links.boundaries.begin_maximum(self._says().numbers())
        if self._rhythm.at_once:
            self._heed(step, self._pending)
        self._next = step + self._rhythm.every

    def _says(self) -> NodeSays:
        page = self._peers.page
        return NodeSays(
            stop=any(one.stop_wanted for one in self._peers.pages),
            save=self._save_wanted(),
            due=self._first and self._due(),
            busy=self._saving(),
            step_us=int(page.step_seconds * 1e6),
            every=page.wanted,
            intent=page.q[INTENT],
        )

    def _heed(self, step: int, pending: PendingMaximum) -> None:
        """What all nodes have said: every node announces the same to its ranks, at the same step."""
        self._pending = None
        said = NodesSay.of(pending.result())
        if unequal := said.unequal_totals():
            raise StateError(
                f"cannot go on: one node is to make {unequal[0]} steps and another {unequal[1]}; all ranks must make"
                " the same number of steps where there is no supervisor"
            )
        every_steps = self._settings.every_steps
        self._rhythm = rhythm(said.step_us, every_steps)
        if said.stop:
            self._orders.stop_at = step + _AHEAD
            return
        save = next_save(said, step + _AHEAD, every_steps)
        if save is not None:
            self._orders.persist_at = save
        if said.every not in (0, self._every) and self._every_from <= step:
            self._every, self._every_from = said.every, step + _AHEAD
            self._orders.announce_interval(self._every, self._every_from)

    def settle(self) -> None:
        """The loop is over on all nodes: no word is under way when the script ends the process group."""
        if self._pending is not None:
            self._pending.result()

    # --- the checkpoint of all nodes' shards ------------------------------------------------------------------

    def grant(self, target: writer.SaveTarget) -> None:
        """The first node makes the directory; then the ranks of this node write. Raises AloneError and OSError."""
        if self._first:
            try:
                writer.prepare(target)
            except OSError:
                self._save.prepared(target.step, made=False)
                raise
        if not self._save.prepared(target.step, made=True):
            raise AloneError("node 0 could not make room for it")
        self._orders.granted = target.step

    def commit(self, target: writer.SaveTarget) -> None:
        """The first node commits once all ranks of all nodes have written. Raises AloneError, OSError and Damaged."""
        self._await_shards(target.step)
        if not self._save.written(target.step, done=True):
            raise AloneError("another node could not write its shards")
        if self._first:
            try:
                self._commit(target)
            except (OSError, tensor_file.Damaged):
                self._save.committed(target.step, done=False)
                raise
        if not self._save.committed(target.step, done=True):
            raise AloneError("node 0 could not commit it")
        self._release(target.step)

    def give_up(self, target: writer.SaveTarget) -> None:
        """This step is not saved, on no node."""
        with suppress(AloneError):  # then every later word is refused, with its cause
            self._save.give_up(target.step)
        if self._first:
            super().give_up(target)
        else:
            self._release(target.step)
