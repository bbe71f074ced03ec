"""Leads the ranks of one of several nodes whose checkpoints go to a store: the nodes need not share a directory.

Each node's directory is a cache. To save, each node writes its shards into a directory of its own (`Settings.save_dir`)
and uploads them to a folder of the store that the first node has named; the first node joins the part files of all, and
commits. To resume, the first node brings a step, and then the others, before any rank reads it. Where nodes do share a
directory, they do just the same. The keeper (ftlaunch/checkpoints/stores/node_checkpoints.py) does what touches the
store.
"""

from __future__ import annotations

import json
import secrets
import shutil
from contextlib import suppress
from typing import Any

from ftlaunch_contract.checkpoint import layout, seeds, tensor_file, writer
from ftlaunch_contract.checkpoint.retention import PART
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_hooks.process.operations import log_operation
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone import resume_choice
from ftlaunch_hooks.standalone.nodes.links import Links
from ftlaunch_hooks.standalone.nodes.node_keeper import NodeKeeper
from ftlaunch_hooks.standalone.nodes.node_memory import NodeMemory
from ftlaunch_hooks.standalone.nodes.nodes_leader import NodesLeader
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.settings import AloneError, Settings
from ftlaunch_hooks.standalone.store_keeper import StoreKeeper

# What a node says of the step that it was to bring.
_BROUGHT = 0
_FAILED = 1
_DAMAGED = 2


class StoredNodesLeader(NodesLeader):
    """The part of the first rank of one of several nodes, where a store has the checkpoints."""

    def __init__(self, peers: Peers, settings: Settings, memory: NodeMemory, links: Links) -> None:
        """Lead `peers`, as NodesLeader does. settings: the job's settings, with a store."""
        super().__init__(peers, settings, memory, links)
        self._keeper: NodeKeeper | None = None if self._first else NodeKeeper(settings, self._stop_overtaken)
        self._is_overtaken = False
        self._folder = ""  # of the save under way, as long as the first node may delete it

    def _stop_overtaken(self, error: str) -> None:
        if not self._is_overtaken:
            self._is_overtaken = True
            say(f"{error}: the job goes on there, and is stopped here")
            self._stop()

    # --- where to resume --------------------------------------------------------------------------------------

    def _prepare_directory(self) -> None:
        """Take the first node's directory into custody, and have each node reach the store. Raises AloneError."""
        error = ""
        try:
            self._clear_save_dir()  # of a save that was cut off
            if self._keeper is None:
                self._acquire_custody()
            else:
                self._keeper.attach()
        except AloneError as problem:
            error = str(problem)
        reached = self._links.saves.gather([not error])
        if error:
            raise AloneError(error)
        if failed := [place for place, answer in enumerate(reached) if answer == [0]]:
            raise AloneError(f"cannot attach: node {failed[0]} cannot begin; it says why")

    def _first_chooses(self, memory_step: int) -> tuple[Resume, int, int]:
        """Have the first node choose where to resume, and every node bring what it lacks for that.

        A step that another node finds damaged in the store is given up, and the choice made again.
        """
        opened = False
        while True:
            kind, step, lineage, told = self._choose_on_all(memory_step, is_opened=opened)
            opened = True
            answers = self._links.saves.gather([self._bring(step if kind is Resume.STORAGE else NONE, told)])
            outcomes = [answer for (answer,) in answers]
            if not any(outcomes):
                return kind, step, lineage
            if _FAILED in outcomes:
                place = outcomes.index(_FAILED)
                raise AloneError(f"cannot attach: node {place} cannot bring step {step} from the store; it says why")
            self._check_damaged(step, outcomes.index(_DAMAGED))

    def _choose_on_all(self, memory_step: int, *, is_opened: bool) -> tuple[Resume, int, int, dict[str, Any]]:
        """Return what the first node chooses: kind, step, number of the lineage, and what the others need to bring it.

        Args:
            memory_step: the newest step that all nodes hold in memory, or NONE.
            is_opened: whether the first node has opened the store.

        Raises:
            AloneError: the first node cannot choose, or a node is gone.
        """
        kind = Resume.UNDECIDED
        step = NONE
        lineage = 0
        text = ""
        if self._first:
            try:
                if not is_opened:
                    self._open(memory_step)
                kind, step, told = self._choose_with_nodes(memory_step)
                lineage = 1 + secrets.randbits(61)
                text = json.dumps(told)
            except AloneError as problem:
                text = str(problem)
            except OSError as problem:
                text = f"cannot attach: {problem.filename or self._settings.checkpoint_dir}: {problem.strerror}"
        (number, step, lineage), text = self._links.saves.broadcast_first([kind, step, lineage], text)
        if Resume(number) is Resume.UNDECIDED:
            raise AloneError(text)
        return Resume(number), step, lineage, json.loads(text)

    def _open(self, memory_step: int) -> None:
        locks = [] if self._custody is None else self._custody.fds
        self._store = store = StoreKeeper(self._settings, locks, self._stop)
        store.open(memory_step, life=secrets.token_hex(8))
        if (asked := self._own_step_asked_for()) is not None:
            store.bring_step(asked)

    def _choose_with_nodes(self, memory_step: int) -> tuple[Resume, int, dict[str, Any]]:
        """Choose on the first node. Return kind, step, and what the other nodes need. Raises AloneError, OSError."""
        store = self._store
        assert store is not None
        directory = self._settings.checkpoint_dir
        usable_memory = NONE if store.has_forgotten else memory_step
        if store.newest > usable_memory:
            store.bring_newest()
        if usable_memory == NONE:
            self._refuse_damaged(store)
        chosen = resume_choice.choose_beside(usable_memory, directory, say)
        kind, step = chosen or self._choose_from_storage()
        if kind is Resume.MEMORY:
            say(f"all nodes hold step {step} in memory: the job goes on from there")
        if kind is not Resume.REFUSED:
            store.put_aside(above=step if kind in (Resume.MEMORY, Resume.STORAGE) else NONE)
        names = (layout.SEED, layout.SKIPPED)
        beside = {name: (directory / name).read_text() for name in names if (directory / name).exists()}
        return kind, step, {"token": store.token, "beside": beside}

    def _bring(self, step: int, told: dict[str, Any]) -> int:
        """Bring a step to this node, or with NONE what lies beside the checkpoints. Return how that went."""
        if self._keeper is None:
            return _BROUGHT  # before it was chosen
        answer = self._keeper.fetch(step, told["token"], told["beside"])
        if "error" not in answer:
            return _BROUGHT
        if step != NONE:
            say(f"cannot bring step {step} from the store: {answer['error']}")
        else:
            say(f"cannot use the store: {answer['error']}")
        return _DAMAGED if answer.get("damaged") else _FAILED

    def _check_damaged(self, step: int, place: int) -> None:
        """Have the first node look at a step that another one has found damaged. Raises AloneError if it is whole."""
        error = ""
        if self._store is not None:
            try:
                if self._store.check(step):
                    error = f"cannot attach: node {place} cannot use step {step}, which the store has whole"
            except AloneError as problem:
                error = str(problem)
        _, error = self._links.saves.broadcast_first([0], error)
        if error:
            raise AloneError(error)

    # --- the checkpoint of all nodes' shards ------------------------------------------------------------------

    def grant(self, target: writer.SaveTarget) -> None:
        """Have the first node name a folder of the store, and let the ranks of this node write.

        Raises:
            AloneError: the first node cannot name one, or a node is gone.
            OSError: this node has no room to write.
        """
        folder = ""
        if self._store is not None:
            folder = str(self._store.ask({"do": "new_folder", "step": target.step}).get("folder", ""))
        self._folder = self._save.begun(target.step, folder)
        if not self._folder:
            raise AloneError("node 0 does not reach the store")
        writer.prepare(target)
        self._orders.granted = target.step

    def commit(self, target: writer.SaveTarget) -> None:
        """Wait until all nodes have written and uploaded, and until the first node has committed.

        Raises:
            AloneError: another node could not write, upload or commit, or a node is gone.
            OSError: this is the first node, and it cannot commit.
            Damaged: this is the first node, and a shard is damaged.
        """
        self._await_shards(target.step)
        if self._keeper is not None:
            self._keeper.upload(self._folder, target.checkpoint_dir, self._upload_bandwidth(target.why))
        if not self._save.written(target.step, done=True):
            raise AloneError("another node could not write or upload its shards")
        if self._store is not None:
            try:
                self._commit_in_store(target, self._store)
            except (OSError, tensor_file.Damaged, AloneError):
                self._save.committed(target.step, done=False)
                raise
        if not self._save.committed(target.step, done=True):
            raise AloneError("node 0 could not commit it")
        self._clear_save_dir()
        self._release(target.step)

    def _commit_in_store(self, target: writer.SaveTarget, store: StoreKeeper) -> None:
        """Join the part files of all nodes, and commit. Raises AloneError, OSError, Damaged."""
        folder = self._folder
        step = target.step
        directory = layout.incomplete_dir(target.checkpoint_dir, step)
        others = [rank for rank in range(target.world_size) if rank not in self._peers.node.ranks]
        names = [PART.format(rank=rank) for rank in others]
        parts = store.ask({"do": "parts", "folder": folder, "directory": str(directory), "names": names})
        if "error" in parts:
            raise AloneError(parts["error"])
        try:
            joined = writer.join(target)
        except ValueError as error:
            raise tensor_file.Damaged(f"a part file cannot be read: {error}") from error
        if joined.seed is not None:
            seeds.keep(self._settings.checkpoint_dir, joined.seed)
        self._folder = ""  # from now on it may be committed
        committed = store.ask(
            {
                "do": "commit",
                "step": step,
                "folder": folder,
                "directory": str(directory),
                "keep": self._settings.keep,
                "keep_every": self._settings.keep_every,
                "bandwidth": self._upload_bandwidth(target.why),
            }
        )
        if "error" in committed:
            raise AloneError(committed["error"])
        log_operation(f"saved step {step} ({target.why}, {committed['bytes']} bytes) to {store.where}")
        for deleted in committed["deleted"]:
            log_operation(f"deleted step {deleted} from {store.where} ({self._settings.keep} are kept)")
        for note in committed["notes"]:
            say(note)

    def _upload_bandwidth(self, why: str) -> float | None:
        """Return this node's part of the job's bandwidth; None: no limit is set, or something waits for the save."""
        if not self._settings.bandwidth or Why[why.upper()] not in (Why.INTERVAL, Why.REQUEST):
            return None
        return self._settings.bandwidth * self._peers.node.count / self._peers.world_size

    def give_up(self, target: writer.SaveTarget) -> None:
        """Discard a step that could not be saved, on all nodes and in the store."""
        with suppress(AloneError):  # every later exchange raises this error again, with its cause
            self._save.give_up(target.step)
        self._clear_save_dir()
        if self._store is not None and self._folder:
            self._store.ask({"do": "delete", "folder": self._folder})  # else the next start deletes it
        self._release(target.step)

    def _clear_save_dir(self) -> None:
        """Remove what this node has written of a save. What cannot be removed now, the next save removes."""
        shutil.rmtree(self._settings.save_dir, ignore_errors=True)

    def hurry(self) -> None:
        """Let an upload go on as fast as it can."""
        super().hurry()
        if self._keeper is not None:
            self._keeper.hurry()

    def leave(self, *, is_finished: bool) -> None:
        """Release the checkpoint directory, and the store."""
        super().leave(is_finished=is_finished)
        if self._keeper is not None:
            self._keeper.leave()
