"""The checkpoint directories of nodes that do not share the head's: caches of the job's checkpoint store.

Before the first attempt on a node, its directory gets the small files that lie beside the head's checkpoints. Before
ranks resume from a checkpoint, each such directory gets that checkpoint. Runs in the head's event loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.nodes.cluster.fetch_round import FetchRound, OnFetched
from ftlaunch.nodes.cluster.head_store import HeadStore
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.nodes.placed_nodes import PlacedNodes
from ftlaunch.nodes.cluster.unshared_nodes import CHECKPOINT_DIR


class NodeCaches:
    """The caches of the nodes that have a place."""

    def __init__(self, store: HeadStore | None, places: PlacedNodes, give_up: Callable[[Node, str], None]) -> None:
        """Ask nothing yet.

        Args:
            store: the store of the job; None: there is none.
            places: the nodes that have places.
            give_up: gives up a node, with the reason.
        """
        self._store = store
        self._places = places
        self.give_up = give_up
        """gives up a node, with the reason"""
        self._numbers = itertools.count(1)
        self._versions: dict[int, int] = {}  # number of a request -> the version of the small files in it
        self._step = NONE  # that is being fetched
        self._round = FetchRound(self._apart_nodes, lambda node: self._send(node, self._step))

    def apart(self) -> frozenset[int]:
        """Return the places whose nodes have a checkpoint directory of their own."""
        return frozenset(place for place, node in self._places.all().items() if CHECKPOINT_DIR in node.apart)

    def _apart_nodes(self) -> list[Node]:
        return [node for node in self._places.all().values() if CHECKPOINT_DIR in node.apart]

    def are_ready(self) -> bool:
        """Return whether all caches have the newest small files. Those that lack them are asked, once."""
        store = self._store
        if store is None:
            return True
        behind = [node for node in self._apart_nodes() if node.cache_version != store.version]
        for node in behind:
            if node.cache_asked != store.version:
                node.cache_asked = store.version
                self._send(node, NONE)
        return not behind

    def fetch(self, step: int, on_fetched: OnFetched) -> None:
        """Have every cache get a step of the store. Nodes that get a place meanwhile are asked, too.

        Args:
            step: the step.
            on_fetched: called once all have the step, or one of them cannot get it.
        """
        self._step = step
        self._round.begin(on_fetched, is_new=True)

    def _send(self, node: Node, step: int) -> int:
        """Ask a node to fetch a step (NONE: only the small files). Return the number of the request."""
        store = self._store
        assert store is not None
        number = next(self._numbers)
        self._versions[number] = store.version
        request = {
            "do": "fetch",
            "number": number,
            "store": store.address,
            "step": step,
            "token": store.token,
            "beside": store.beside,
        }
        node.send("saver", request=request)
        return number

    def handle_answer(self, node: Node, answer: Mapping[str, Any]) -> None:
        """Handle a node's answer to `fetch`.

        Raises:
            KeyError: the answer is malformed; TypeError can be raised for the same reason.
        """
        if self._store is None or answer["token"] != self._store.token:
            return  # an answer to an earlier head
        version = self._versions.pop(answer["number"], None)
        if version is None:
            return
        if "error" not in answer:
            node.cache_version = version
        if self._round.is_about(node, answer["number"]):
            self._round.take_answer(node, answer.get("error", ""), is_damaged=bool(answer.get("damaged")))
        elif "error" in answer:
            self.give_up(node, f"its checkpoint directory cannot be used: {answer['error']}")

    def forget_lost(self) -> None:
        """Go on without a node that is lost."""
        self._round.go_on()
