"""Leads the ranks of one of several nodes, in the node's first rank, together with the first ranks of other nodes.

At step boundaries the nodes exchange a few numbers (exchange.py), from which each node derives the same orders for its
own ranks. Only the first rank of the first node touches what the nodes share on storage. `announce` and `settle` run in
the thread that trains, `grant`, `commit` and `give_up` in the saver thread, each with a group of its own (links.py).
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

_AHEAD = (
    2  # steps between an exchange and what it announces: ranks may have read their orders for the next step already
)


class NodesLeader(NodeLeader):
    """The part of the first rank of one of several nodes."""

    def __init__(self, peers: Peers, settings: Settings, memory: NodeMemory, links: Links) -> None:
        """Lead `peers`, the ranks of this node.

        Args:
            peers: the ranks of this node.
            settings: the job's settings.
            memory: the node's memory directory.
            links: the groups of the nodes' first ranks.
        """
        super().__init__(peers, settings)
        self._memory = memory
        self._links = links
        self._first = peers.rank == 0
        self._save = CommonSave(links.saves, first=self._first)
        self._pending: PendingMaximum | None = None
        self._rhythm = Rhythm(1, at_once=True)
        self._next_exchange = 0  # step
        self._every = settings.memory_interval.steps  # steps between snapshots, as last announced
        self._every_from = NONE  # first step of that interval

    # --- where to resume --------------------------------------------------------------------------------------

    def decide_resume(self) -> None:
        """Agree with all nodes where to resume, and tell the ranks of this node.

        Raises:
            AloneError: settings differ, the nodes share no checkpoint directory, or the job cannot resume.
        """
        holds = NodeHolds(
            settings=self._settings.digest(),
            lineage=self._memory.lineage(),
            steps=self._peers.common_steps(),
        )
        nodes = [NodeHolds.of(numbers) for numbers in self._links.meeting.gather(holds.numbers())]
        other = set_otherwise(nodes)
        if other is not None:
            raise AloneError(
                f"cannot attach: the FTLAUNCH_* variables of node {other} are not those of node 0; the interval of"
                " snapshots, those of saves and keeping, how the job begins, and its checkpoint store must be the same"
                " on all nodes"
            )
        self._prepare_directory()
        kind, step, lineage = self._first_chooses(common_step(nodes))
        try:
            self._memory.begin_lineage(lineage, step if kind == Resume.MEMORY else NONE, self._peers.pages)
        except OSError as error:
            raise AloneError(f"cannot attach: {self._memory.directory}: {error.strerror}") from None
        self._orders.decide_resume(kind, step)

    def _prepare_directory(self) -> None:
        """Take the first node's directory into custody, and check that all nodes see it. Raises AloneError on all."""
        directory = self._settings.checkpoint_dir
        mark = 0
        error = ""
        if self._first:
            try:
                self._acquire_custody()
                mark = secrets.randbits(62)
                shared_directory.leave_mark(directory, mark)
            except AloneError as problem:
                error = str(problem)
            except OSError as problem:
                error = f"cannot attach: cannot write to {directory}: {problem.strerror}"
        [mark], error = self._links.saves.broadcast_first([mark], error)
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
        """Have the first node choose where to resume, and return its choice on all nodes.

        Args:
            memory_step: the newest step that all nodes hold in memory, or NONE.

        Returns:
            The kind of the resume, its step, and the number of the lineage that begins with the resume.

        Raises:
            AloneError: the first node cannot choose, or a node is gone.
        """
        kind = Resume.UNDECIDED
        step = NONE
        lineage = 0
        error = ""
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
        (number, step, lineage), error = self._links.saves.broadcast_first([kind, step, lineage], error)
        if error:
            raise AloneError(error)
        return Resume(number), step, lineage

    # --- at step boundaries -----------------------------------------------------------------------------------

    def announce(self, step: int) -> None:
        """Exchange reports with the other nodes if an exchange is due, and announce what follows.

        Args:
            step: the number of completed steps.

        Raises:
            AloneError: another node is gone.
            StateError: the nodes' scripts are going to make different numbers of steps.
        """
        if step < self._next_exchange or self._orders.stop_at != NONE:
            return
        if self._pending is not None:
            self._announce_result(step, self._pending)
            if self._orders.stop_at != NONE:
                return
        self._pending = self._links.boundaries.begin_maximum(self._report().numbers())
        if self._rhythm.at_once:
            self._announce_result(step, self._pending)
        self._next_exchange = step + self._rhythm.every

    def _report(self) -> NodeSays:
        page = self._peers.page
        return NodeSays(
            stop=any(peer.stop_wanted for peer in self._peers.pages),
            save=self._is_save_asked(),
            due=self._first and self._is_save_due(),
            busy=self._is_saving(),
            step_us=int(page.step_seconds * 1e6),
            every=page.wanted,
            intent=page.q[INTENT],
        )

    def _announce_result(self, step: int, pending: PendingMaximum) -> None:
        """Wait for the reports of all nodes, and announce what follows: the same on every node, at the same step."""
        self._pending = None
        reports = NodesSay.of(pending.result())
        if unequal := reports.unequal_totals():
            raise StateError(
                f"cannot go on: one node is to make {unequal[0]} steps and another {unequal[1]}; all ranks must make"
                " the same number of steps where there is no supervisor"
            )
        every_steps = self._settings.every_steps
        self._rhythm = rhythm(reports.step_us, every_steps)
        if reports.stop:
            self._orders.stop_at = step + _AHEAD
            return
        save_step = next_save(reports, step + _AHEAD, every_steps)
        if save_step is not None:
            self._orders.persist_at = save_step
        if reports.every not in (0, self._every) and self._every_from <= step:
            self._every = reports.every
            self._every_from = step + _AHEAD
            self._orders.announce_interval(self._every, self._every_from)

    def settle(self) -> None:
        """Wait for the exchange under way at the end of the loop, before the script may end the process group."""
        if self._pending is not None:
            self._pending.result()

    # --- the checkpoint of all nodes' shards ------------------------------------------------------------------

    def grant(self, target: writer.SaveTarget) -> None:
        """Wait until the first node has made the directory, and let the ranks of this node write.

        Raises:
            AloneError: the first node could not make the directory, or a node is gone.
            OSError: this is the first node, and it cannot make the directory.
        """
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
        """Wait until all ranks of all nodes have written, and until the first node has committed.

        Raises:
            AloneError: another node could not write or commit, or a node is gone.
            OSError: this is the first node, and it cannot commit.
            Damaged: this is the first node, and a shard is damaged.
        """
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
        """Discard a step that could not be saved, on all nodes."""
        with suppress(AloneError):  # every later exchange raises this error again, with its cause
            self._save.give_up(target.step)
        if self._first:
            super().give_up(target)
        else:
            self._release(target.step)
