"""Saves a step whose snapshots lie on several nodes: each node's saver writes its shards, and the head's saver commits.

The head's saver makes a shared directory, every node's saver writes into it, and the head's saver commits once all
nodes have reported their shards. What a replaced head's node or a lost node writes later belongs to no checkpoint. Runs
in the head's event loop, in place of the one-machine `SaverLink`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.memory.pages import Pages
from ftlaunch.nodes.channel.arbiter import Place
from ftlaunch.nodes.cluster.cluster import Cluster

_TARGET = ("step", "why", "checkpoint_dir", "prefix", "world_size", "abnormal")
Answer = dict[str, Any]
_numbers = itertools.count(
    1
)  # of writes; a saver that replaces a dead one must not take answers to the dead one's writes


class ClusterSaver:
    """Implements the interface of `SaverLink` for several nodes. Only `save` concerns the nodes' savers."""

    def __init__(
        self,
        own: SaverLink,
        cluster: Cluster,
        pages: Pages,
        listen: Callable[[int, Callable[[], None]], None],
        ignore: Callable[[int], None],
        claim: tuple[Place, int],
    ) -> None:
        """Use the head's saver and the nodes' savers.

        Args:
            own: the head's saver.
            cluster: the nodes.
            pages: mirrors of the pages of all ranks.
            listen: registers a descriptor and its handler in the event loop.
            ignore: unregisters a descriptor.
            claim: the place of the arbiter and the term of this head, which is checked before each commit.
        """
        self._own = own
        self._cluster = cluster
        self._pages = pages
        self._ignore = ignore
        self._claim = claim
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.pid = own.pid
        self.pending: Answer | None = None
        self._answers: list[Answer] = []
        self._gone = False
        self._awaited: set[int] = set()  # places whose savers are still writing
        self._number = 0  # of the write under way
        self._failed: Answer | None = None  # the answer to give once the written shards have been discarded
        cluster.on_saver = self._on_node_answer
        cluster.on_lost = self._on_lost
        listen(own.fd, self._on_own_answers)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._own.closed

    def ask(self, request: Answer) -> None:
        """Send a request, which is `pending` until its answer has come."""
        assert self.pending is None
        self.pending = request
        if request["do"] == "save":
            self._own.ask({"do": "prepare", **self._target(request)})
        else:
            self._own.ask(request)

    def hurry(self) -> None:
        """Let the save under way go on as fast as possible."""
        self._own.hurry()
        for place in self._awaited:
            self._cluster.send_to_place(place, "saver", request={"do": "hurry"})

    def answers(self) -> list[Answer] | None:
        """Return the answers that have arrived, or None once the head's saver is gone."""
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
        return self._own.work(), len(self._awaited)

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
        if answer["did"] == "prepare" and "error" not in answer:
            self._write()
        elif answer["did"] == "discard":
            assert self._failed is not None
            self._give_answer(self._failed)
        else:
            is_part_of_save = answer["did"] in ("prepare", "commit")
            self._give_answer({**answer, "did": "save"} if is_part_of_save else answer)

    def _write(self) -> None:
        """Have each node's saver write the shards of the ranks whose snapshots its memory holds."""
        request = self.pending
        self._number = next(_numbers)
        assert request is not None
        try:
            slots = {rank: self._pages.slot_of(rank, request["step"]) for rank in range(len(self._pages))}
        except ValueError:  # a node was lost while the directory was made
            self._fail("a node, which held a part of it, is lost")
            return
        parts = self._cluster.copies.lost_snapshots.by_place(slots)
        self._awaited = set(parts)
        for place, ranks in parts.items():
            part = {
                "do": "write",
                "number": self._number,
                **self._target(request),
                "slots": {str(rank): slot for rank, slot in ranks.items()},
                "bandwidth": request.get("bandwidth"),
            }
            if not self._cluster.send_to_place(place, "saver", request=part):
                self._on_lost(place)
                return

    def _on_node_answer(self, place: int, answer: Mapping[str, Any]) -> None:
        request = self.pending
        if place not in self._awaited or request is None or answer.get("number") != self._number:
            return
        if "error" in answer:
            self._fail(f"node {place}: {answer['error']}")
            return
        self._awaited.discard(place)
        if not self._awaited:
            keep = {name: request[name] for name in ("keep", "keep_every")}
            self._own.ask({"do": "commit", **self._target(request), **keep, "claim": self._claim})

    def _on_lost(self, place: int) -> None:
        if place in self._awaited:
            self._fail(f"node {place}, which held a part of it, is lost")

    def _fail(self, error: str) -> None:
        """Give up the save under way: discard what was written, then answer with the error."""
        self._awaited = set()
        request = self.pending
        assert request is not None
        self._failed = {"did": "save", "step": request["step"], "why": request["why"], "error": error}
        self._own.ask({"do": "discard", **self._target(request)})

    def _give_answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        os.eventfd_write(self.fd, 1)
