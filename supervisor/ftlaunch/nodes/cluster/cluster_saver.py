"""Saves a step whose snapshots lie on several nodes: each node's saver writes its shards, and the head's saver commits.

The head's saver makes a shared directory, every node's saver writes into it, and the head's saver commits once all
nodes have reported their shards. What a replaced head's node or a lost node writes later belongs to no checkpoint. Runs
in the head's event loop, in place of the one-machine `SaverLink`.

A node that does not share the head's checkpoint directory uploads its shards to a folder of the job's checkpoint store.
Then the head's saver joins the parts of all nodes, and the head's keeper uploads its own and commits in the store.
Without a store such a checkpoint is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.checkpoints.stores.stored_checkpoints import new_folder
from ftlaunch.memory.pages import Pages
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.nodes.channel.arbiter import Place
from ftlaunch.nodes.cluster.cluster import Cluster
from ftlaunch.nodes.cluster.head_store import HeadStore
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.reporting.events.stores import CheckpointStored
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.retention import PART

_TARGET = ("step", "why", "checkpoint_dir", "prefix", "world_size", "abnormal")
UNSHARED = (
    "the nodes share no checkpoint directory; give `--checkpoint-dir` a directory that all nodes share, or the address"
    " of a store (s3://BUCKET/PREFIX)"
)
Answer = dict[str, Any]
_numbers = itertools.count(
    1
)  # of writes; a saver that replaces a dead one must not take answers to the dead one's writes


class ClusterSaver:
    """Implements `Saver` for several nodes. `save`, `find` and `go_back` concern the nodes, too."""

    def __init__(
        self,
        own: SaverLink,
        cluster: Cluster,
        pages: Pages,
        listen: Callable[[int, Callable[[], None]], None],
        ignore: Callable[[int], None],
        claim: tuple[Place, int],
        store: HeadStore | None,
    ) -> None:
        """Use the head's saver and the nodes' savers.

        Args:
            own: the head's saver.
            cluster: the nodes.
            pages: mirrors of the pages of all ranks.
            listen: registers a descriptor and its handler in the event loop.
            ignore: unregisters a descriptor.
            claim: the place of the arbiter and the term of this head, which is checked before each commit.
            store: the checkpoint store of the job; None: there is none.
        """
        self._own = own
        self._cluster = cluster
        self._pages = pages
        self._ignore = ignore
        self._claim = claim
        self._store = store
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.pid = own.pid
        self.pending: Answer | None = None
        self._answers: list[Answer] = []
        self._gone = False
        self._awaited: set[int] = set()  # places whose savers are still writing
        self._number = 0  # of the request under way
        self._began = 0.0  # monotonic; when that request was made
        self._signs = 0  # of work that nodes have given
        self._outcome: Answer | None = None  # the answer to give once the head's directory is empty again
        self._apart: dict[int, list[int]] = {}  # place -> ranks, of the nodes that upload what they write
        self._folder = ""  # of the store, into which they upload
        self._health: Answer = {}  # of the step that was joined
        self._has_brought = False  # whether the newest step of the store was brought for the `find` under way
        self._rejected: list[Answer] = []  # checkpoints that were refused for the `find` under way
        cluster.on_saver = self._on_node_answer
        cluster.on_lost = self._on_lost
        listen(own.fd, self._on_own_answers)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._own.closed

    @property
    def stored(self) -> int:
        """The newest step of the store, which the head's checkpoint directory need not have; NONE: there is none."""
        return NONE if self._store is None else self._store.newest

    def ask(self, request: Answer) -> None:
        """Send a request, which is `pending` until its answer has come."""
        assert self.pending is None
        self.pending = request
        self._number = next(_numbers)
        self._began = time.monotonic()
        self._folder = ""
        self._has_brought = False
        self._rejected = []
        is_own = request["do"] == "save" or (request["do"] == "find" and "load" not in request)
        apart = self._cluster.caches.apart()
        if is_own and apart and self._store is None:
            about = request if request["do"] == "find" else {"step": request["step"], "why": request["why"]}
            found = {"step": NONE, "rejected": []} if request["do"] == "find" else {}
            self._give_answer({**about, "did": request["do"], **found, "error": UNSHARED})
        elif request["do"] == "save":
            self._own.ask({"do": "prepare", **self._target(request)})
        elif is_own and apart:
            self._bring()
        else:
            self._own.ask(request)

    def hurry(self) -> None:
        """Let the save under way go on as fast as possible."""
        self._own.hurry()
        for place in self._awaited:
            self._cluster.send_to_place(place, "saver", request={"do": "hurry"})

    def answers(self) -> list[Answer] | None:
        """Return the answers that have arrived, or None once the head's saver is gone."""
        with contextlib.suppress(BlockingIOError):  # the keeper of the store has answered, and no saver
            os.eventfd_read(self.fd)
        found = self._answers
        self._answers = []
        if found:
            self.pending = None
            if self._gone:
                os.eventfd_write(self.fd, 1)  # the next call reports that the saver is gone
        return None if self._gone and not found else found

    def work(self) -> object:
        """Return a value that changes whenever a saver is known to have made progress."""
        return self._own.work(), len(self._awaited), self._signs, self._cluster.loads.signs

    def kill_if_stopped(self, now: float) -> None:
        """Check that the head's saver is not stuck; the nodes' savers are checked by their agents."""
        self._own.kill_if_stopped(now)

    def close(self, timeout: float) -> int | None:
        """End the head's saver, after `timeout` seconds at most. Return its exit status, if known."""
        if not self._gone:
            self._ignore(self._own.fd)
        self._cluster.on_saver = lambda place, answer: None
        self._cluster.on_lost = lambda place: None
        status = self._own.close(timeout)
        os.close(self.fd)
        return status

    # --- the parts of a save ----------------------------------------------------------------------------------

    def _target(self, request: Mapping[str, Any]) -> Answer:
        whole = {**request, "world_size": len(self._pages)}
        return {name: whole[name] for name in _TARGET}

    def _on_own_answers(self) -> None:
        answers = self._own.answers()
        if answers is None:
            self._gone = True
            self._ignore(self._own.fd)
            os.eventfd_write(self.fd, 1)
            return
        for answer in answers:
            self._handle_own_answer(answer)

    def _handle_own_answer(self, answer: Answer) -> None:
        did = answer["did"]
        if did == "prepare" and "error" not in answer:
            self._write()
        elif did == "discard":
            assert self._outcome is not None
            self._give_answer(self._outcome)
        elif did == "join":
            self._commit_in_store(answer)
        elif did == "find":
            self._have_nodes_follow(answer)
        elif did == "go_back" and "error" not in answer and self._store is not None:
            self._put_aside(answer, self._store)
        else:
            is_part_of_save = did in ("prepare", "commit")
            self._give_answer({**answer, "did": "save"} if is_part_of_save else answer)

    def _take_if_current(self, take: Callable[[Answer], None]) -> Callable[[Answer], None]:
        """Return a function that takes the keeper's answer, unless the request that it was asked for is over."""
        number = self._number

        def take_current(answer: Answer) -> None:
            if number == self._number and self.pending is not None and not self.closed and not self._gone:
                take(answer)

        return take_current

    def _write(self) -> None:
        """Have each node's saver write the shards of the ranks whose snapshots its memory holds."""
        request = self.pending
        assert request is not None
        try:
            slots = {rank: self._pages.slot_of(rank, request["step"]) for rank in range(len(self._pages))}
        except ValueError:  # a node was lost while the directory was made
            self._fail("a node, which held a part of it, is lost")
            return
        parts = self._cluster.copies.lost_snapshots.by_place(slots)
        self._awaited = set(parts)
        apart = self._cluster.caches.apart()
        self._apart = {place: list(ranks) for place, ranks in parts.items() if place in apart}
        if self._apart and self._store is None:  # a node has just said that it shares nothing
            self._fail(UNSHARED)
            return
        if self._store is not None:
            self._folder = new_folder(request["step"], self._store.term) if self._apart else ""
        for place, ranks in parts.items():
            part = {
                "do": "write",
                "number": self._number,
                **self._target(request),
                "slots": {str(rank): slot for rank, slot in ranks.items()},
                "bandwidth": request.get("bandwidth"),
            }
            if place in self._apart:
                part["folder"] = self._folder
            if not self._cluster.send_to_place(place, "saver", request=part):
                self._on_lost(place)
                return

    def _on_node_answer(self, place: int, answer: Mapping[str, Any]) -> None:
        request = self.pending
        if place not in self._awaited or request is None or answer.get("number") != self._number:
            return
        if answer.get("did") == "work":
            self._signs += 1
            return
        if "error" in answer:
            self._fail(f"node {place}: {answer['error']}")
            return
        if place in self._apart and answer.get("folder") != self._folder:
            self._fail(f"node {place} has not uploaded its part to {self._folder}")
            return
        self._awaited.discard(place)
        if not self._awaited and self._apart:
            self._join()
        elif not self._awaited:
            keep: Answer = {name: request[name] for name in ("keep", "keep_every", "cache") if name in request}
            self._own.ask({"do": "commit", **self._target(request), **keep, "claim": self._claim})

    def _on_lost(self, place: int) -> None:
        if place in self._awaited:
            self._fail(f"node {place}, which held a part of it, is lost")

    def _fail(self, error: str, *, may_be_committed: bool = False) -> None:
        """Give up the save under way: discard what was written, then answer with the error.

        Args:
            error: why.
            may_be_committed: whether the store may have committed the step all the same, so that nothing there may be
                deleted. What is left there goes at the next start.
        """
        self._awaited = set()
        request = self.pending
        assert request is not None
        self._outcome = {"did": "save", "step": request["step"], "why": request["why"], "error": error}
        if self._folder and self._store is not None and not may_be_committed:
            self._store.ask({"do": "delete", "folder": self._folder}, lambda _: None)
        self._own.ask({"do": "discard", **self._target(request)})

    def _give_answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        os.eventfd_write(self.fd, 1)

    # --- a save of nodes that do not share the head's checkpoint directory --------------------------------------

    def _directory(self) -> Path:
        """Return the directory in which the head's saver has its part of the step under way."""
        request = self.pending
        assert request is not None
        return layout.incomplete_dir(Path(request["checkpoint_dir"]), request["step"])

    def _join(self) -> None:
        """Have the parts of all nodes joined: those of other nodes are in the store."""
        names = [PART.format(rank=rank) for ranks in self._apart.values() for rank in ranks]
        request = {"do": "parts", "folder": self._folder, "directory": str(self._directory()), "names": names}
        assert self._store is not None
        self._store.ask(request, self._take_if_current(self._on_parts))

    def _on_parts(self, answer: Answer) -> None:
        request = self.pending
        assert request is not None
        if "error" in answer:
            self._fail(answer["error"])
        else:
            self._own.ask({"do": "join", **self._target(request), "claim": self._claim})

    def _commit_in_store(self, joined: Answer) -> None:
        """Have the keeper upload what the head has of the step, and commit. joined: the saver's answer to `join`."""
        if "error" in joined:
            self._fail(joined["error"])
            return
        request = self.pending
        assert request is not None
        assert self._store is not None
        self._health = joined["health"]
        commit = {
            "do": "commit",
            "step": request["step"],
            "folder": self._folder,
            "directory": str(self._directory()),
            "keep": request["keep"],
            "keep_every": request["keep_every"],
            "bandwidth": request.get("bandwidth"),
        }
        self._store.ask(commit, self._take_if_current(self._on_committed))

    def _on_committed(self, answer: Answer) -> None:
        request = self.pending
        assert request is not None
        if "error" in answer:
            self._fail(answer["error"], may_be_committed=True)
            return
        assert self._store is not None
        self._outcome = {
            "did": "save",
            "step": request["step"],
            "why": request["why"],
            "path": f"{self._store.where}/{self._folder}",
            "bytes": answer["bytes"],
            "seconds": round(time.monotonic() - self._began, 4),
            "health": self._health,
            "displaced": [],
            "deleted": [],
            "notes": answer["notes"],
            "is_stored": True,
        }
        self._store.report(CheckpointStored({**answer, "steps": [request["step"]]}, self._store.where))
        self._own.ask({"do": "discard", **self._target(request)})

    # --- where the store has what directories lack --------------------------------------------------------------

    def _bring(self) -> None:
        """Bring the newest step of the store to the head, and look for checkpoints there after that."""
        request = self.pending
        assert request is not None
        assert self._store is not None
        self._has_brought = True
        bring: Answer = {"do": "bring"}
        if self._cluster.caches.apart():
            bring = {"do": "bring_newest", "healthy_before": request.get("healthy_before")}
        self._store.ask(bring, self._take_if_current(self._on_brought))

    def _on_brought(self, answer: Answer) -> None:
        request = self.pending
        assert request is not None
        if "error" in answer:
            self._fail_find(answer["error"])
            return
        self._reject(answer["refused"])
        self._own.ask(request)

    def _reject(self, refused: list[Answer]) -> None:
        assert self._store is not None
        self._rejected += [{**entry, "to": f"still in {self._store.where}, and not used"} for entry in refused]

    def _fail_find(self, error: str) -> None:
        request = self.pending
        assert request is not None
        self._give_answer({**request, "did": "find", "step": NONE, "rejected": self._rejected, "error": error})

    def _have_nodes_follow(self, answer: Answer) -> None:
        """Have all nodes get the checkpoint that the head's saver has found, and answer after that."""
        request = self.pending
        assert request is not None
        store = self._store
        if "load" in request and "error" not in answer and answer["step"] != NONE:
            self._have_nodes_load(answer)
            return
        if store is None or "load" in request or "error" in answer:
            self._give_answer(answer)
            return
        is_behind = answer["step"] < store.newest and "healthy_before" not in request
        if is_behind and not self._has_brought:
            self._rejected += answer["rejected"]
            self._bring()
            return
        step = answer["step"]
        found = {**answer, "rejected": [*self._rejected, *answer["rejected"]]}
        if step == NONE or not self._cluster.caches.apart():
            self._give_answer(found)
            return
        number = self._number

        def on_fetched(error: str, damaged_at: Node | None) -> None:
            if number != self._number or self.closed or self._gone:
                return
            if not error:
                self._give_answer({**found, "is_stored": True})  # the newest that the store has for all nodes
                return
            self._rejected = found["rejected"]
            if damaged_at is None:
                self._fail_find(error)
            else:
                check = self._take_if_current(lambda checked: self._on_checked(checked, damaged_at, error))
                store.ask({"do": "check", "step": step}, check)

        self._cluster.caches.fetch(step, on_fetched)

    def _have_nodes_load(self, answer: Answer) -> None:
        """Have all nodes bring the checkpoint with which the job begins, and answer after that."""
        number = self._number

        def on_fetched(error: str, _: Node | None) -> None:
            if number == self._number and not self.closed and not self._gone:
                self._give_answer({**answer, "error": error} if error else answer)

        self._cluster.loads.fetch(on_fetched)

    def _on_checked(self, answer: Answer, node: Node, error: str) -> None:
        """Go on with an older step if the store has this one damaged, else without the node that said so.

        Args:
            answer: the keeper's answer to `check`.
            node: the node that could not use the step.
            error: why.
        """
        if "error" in answer:
            self._fail_find(answer["error"])
            return
        self._reject(answer["refused"])
        if not answer["refused"]:
            self._cluster.caches.give_up(node, f"{error}, and the store has it whole: look at the disk of this node")
        self._bring()

    def _put_aside(self, answer: Answer, store: HeadStore) -> None:
        """Have the store and the caches follow a head's directory in which later checkpoints were put aside.

        Args:
            answer: the answer of the head's saver.
            store: the store.
        """
        number = self._number
        followed = {**answer, "is_stored": True}

        def on_fetched(error: str, _: Node | None) -> None:
            if number == self._number and not self.closed and not self._gone:
                self._give_answer({**followed, "error": error} if error else followed)

        def on_put_aside() -> None:
            if number == self._number and not self.closed and not self._gone:
                self._cluster.caches.fetch(NONE, on_fetched)

        store.put_aside(answer["step"], on_put_aside)
