"""Has nodes bring something each, and tells when all of them have it. Runs in the head's event loop."""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.nodes.cluster.nodes.node import Node

OnFetched = Callable[[str, Node | None], None]
"""takes why something could not be fetched (empty after success), and the node that found it damaged, if one did"""


class FetchRound:
    """One thing that nodes must have, one at a time. Nodes that get a place meanwhile are asked, too."""

    def __init__(self, nodes: Callable[[], list[Node]], send: Callable[[Node], int]) -> None:
        """Ask nothing yet.

        Args:
            nodes: returns the nodes that must have it now.
            send: asks a node to fetch it. Returns the number of the request.
        """
        self._nodes = nodes
        self._send = send
        self._on_fetched: OnFetched | None = None  # None: nothing is being fetched
        self._asked: dict[int, int] = {}  # key of a node -> number of the request
        self._have: set[int] = set()  # keys of nodes that have it

    def begin(self, on_fetched: OnFetched, *, is_new: bool) -> None:
        """Have every node fetch it.

        Args:
            on_fetched: called once all have it, or one of them cannot get it.
            is_new: whether it is another thing than before; else nodes that have it are not asked again.
        """
        self._on_fetched = on_fetched
        self._asked = {}
        if is_new:
            self._have = set()
        self.go_on()

    def go_on(self) -> None:
        """Ask the nodes that were not asked yet, or report that all have it."""
        if self._on_fetched is None:
            return
        nodes = self._nodes()
        for node in nodes:
            if node.member.key not in self._asked and node.member.key not in self._have:
                self._asked[node.member.key] = self._send(node)
        if all(node.member.key in self._have for node in nodes):
            self._finish("", None)

    def _finish(self, error: str, damaged_at: Node | None) -> None:
        on_fetched = self._on_fetched
        self._on_fetched = None
        if on_fetched is not None:
            on_fetched(error, damaged_at)

    def is_about(self, node: Node, number: int) -> bool:
        """Return whether a number is that of the request that a node was sent for what is being fetched."""
        return self._asked.get(node.member.key) == number

    def take_answer(self, node: Node, error: str, *, is_damaged: bool) -> None:
        """Take the answer of a node to its request.

        Args:
            node: the node.
            error: why it cannot get it; empty: it has it.
            is_damaged: whether it has found it damaged.
        """
        if error:
            self._finish(f"{node.name}: {error}", node if is_damaged else None)
            return
        self._have.add(node.member.key)
        self.go_on()
