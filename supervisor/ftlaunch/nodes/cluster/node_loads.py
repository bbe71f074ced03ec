"""Brings the checkpoint at an address, with which a job begins, to the nodes that do not share the head's run dir.

The head has brought it into its run dir, and a note there says what it has brought. Before ranks begin with it, every
other node brings the same from the address. Runs in the head's event loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ftlaunch.checkpoints.stores.load_note import LoadNote
from ftlaunch.nodes.cluster.fetch_round import FetchRound, OnFetched
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.nodes.placed_nodes import PlacedNodes
from ftlaunch.nodes.cluster.unshared_nodes import RUN_DIR


class NodeLoads:
    """What the nodes that have a place have brought of the checkpoint at the job's `load_checkpoint`."""

    def __init__(self, places: PlacedNodes, address: str | None, note: LoadNote | None, head_token: str) -> None:
        """Ask nothing yet.

        Args:
            places: the nodes that have places.
            address: the address; None: the job begins with none.
            note: what the head has brought; None: nothing.
            head_token: a word that no other head of the job has.
        """
        self._places = places
        self._address = address
        self._note = note
        self._token = head_token
        self._numbers = itertools.count(1)
        self._round = FetchRound(self._apart_nodes, self._send)
        self.signs = 0
        """changes whenever a node is known to have brought more"""

    def fetch(self, on_fetched: OnFetched) -> None:
        """Have all nodes bring it that need it.

        Args:
            on_fetched: called once all have it, or one of them cannot get it.
        """
        if self._address is not None and self._note is None and self._apart_nodes():
            on_fetched("the machine of this head has not brought it", None)
        else:
            self._round.begin(on_fetched, is_new=False)

    def meet(self, node: Node) -> None:
        """Have a new node remove what it has brought, if the head has done so: the job goes on from its own state.

        The caller has made sure that no ranks of an earlier head run, which may be reading it.
        """
        if self._address is not None and self._note is None and RUN_DIR in node.apart:
            node.send("saver", request={"do": "forget_load"})

    def _apart_nodes(self) -> list[Node]:
        if self._address is None:
            return []
        return [node for node in self._places.all().values() if RUN_DIR in node.apart]

    def _send(self, node: Node) -> int:
        assert self._note is not None
        number = next(self._numbers)
        node.send("saver", request={"do": "load", "number": number, "token": self._token, "like": asdict(self._note)})
        return number

    def handle_answer(self, node: Node, answer: Mapping[str, Any]) -> None:
        """Handle a node's answer to `load`.

        Raises:
            KeyError: the answer is malformed; TypeError can be raised for the same reason.
        """
        if answer["token"] != self._token or not self._round.is_about(node, answer["number"]):
            return
        self.signs += 1
        if not answer.get("goes_on"):
            self._round.take_answer(node, answer.get("error", ""), is_damaged=False)

    def forget_lost(self) -> None:
        """Go on without a node that is lost."""
        self._round.go_on()
