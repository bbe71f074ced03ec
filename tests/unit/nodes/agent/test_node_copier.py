"""A copier that cannot be heard is none: what the head asks of it is answered all the same."""

from __future__ import annotations

import errno
from typing import Any

from ftlaunch.nodes.agent.node.node_copier import NodeCopier


class FakeCopierLink:
    """A copier that says nothing."""

    fd = 7

    def __init__(self) -> None:
        self.closed = False

    def close(self, timeout: float) -> int:
        """It ends."""
        self.closed = True
        return -9


class FullLoop:
    """No descriptor can be waited for any more."""

    def register(self, fd: int, handler: object) -> None:
        """Refuse every descriptor, as a kernel without memory does."""
        raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_a_copier_whose_answers_cannot_be_waited_for_is_ended() -> None:
    """Taken out: the head waits for ever for what this node has copies of."""
    told: list[tuple[str, dict[str, Any]]] = []
    said: list[str] = []
    link, loop = FakeCopierLink(), FullLoop()
    start: Any = lambda: link  # noqa: E731
    full: Any = loop
    copier = NodeCopier(full, start, {"do": "begin"}, lambda do, **fields: told.append((do, fields)), said.append)
    assert said == ["no copies of snapshots are made on this node: Cannot allocate memory"]
    assert link.closed
    copier.obey({"do": "copies", "number": 3, "lineage": "run:0/2"})
    assert told == [("copies", {"number": 3, "held": {}})]
    copier.close()
