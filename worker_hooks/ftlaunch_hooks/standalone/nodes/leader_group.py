"""Exchanges numbers and short texts between the first ranks of all nodes, over a gloo group of their own.

The group is made by torch's public API from the job's own process group. A node that dies closes its connections, so
that a call which waits for the node fails at once. A node that falls silent is awaited until the group's timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ftlaunch_hooks.standalone.settings import AloneError


class PendingMaximum:
    """A maximum over all nodes that is being computed."""

    def __init__(self, group: Any, numbers: Sequence[int]) -> None:
        """Start to compute the maximum of each number over the group, without waiting.

        `result` raises an error that occurs here, because a script that is ending need not see the error.
        """
        self._numbers = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self._error: AloneError | None = None
        try:
            self._work: Any = dist.all_reduce(self._numbers, dist.ReduceOp.MAX, group=group, async_op=True)
        except RuntimeError as error:
            self._error = _lost_node(error)

    def result(self) -> list[int]:
        """Wait for the maximum of each number over all nodes, and return the maxima.

        Raises:
            AloneError: another node is gone or has not answered in time.
        """
        if self._error is not None:
            raise self._error
        try:
            self._work.wait()
        except RuntimeError as error:
            raise _lost_node(error) from None
        maxima: list[int] = self._numbers.tolist()
        return maxima


class LeaderGroup:
    """A process group of the nodes' first ranks, used by one thread with the same order of calls on all nodes.

    Every method that waits raises AloneError if another node is gone or has not answered in time.
    """

    def __init__(self, leaders: Sequence[int], seconds: float) -> None:
        """Make the group, which every rank of the job must do.

        Args:
            leaders: the first ranks of the nodes, which may use the group.
            seconds: time for which each call, this one included, waits for another node.

        Raises:
            AloneError: the group cannot be made.
        """
        self._leaders = leaders
        try:
            self._group = dist.new_group(list(leaders), timeout=timedelta(seconds=seconds), backend="gloo")
        except RuntimeError as error:
            raise _lost_node(error) from None

    def begin_maximum(self, numbers: Sequence[int]) -> PendingMaximum:
        """Start to compute the maximum of each number over all nodes, without waiting."""
        return PendingMaximum(self._group, numbers)

    def all_say_yes(self, answer: bool) -> bool:
        """Return whether `answer` is True on all nodes. Raises AloneError."""
        return self.begin_maximum([not answer]).result() == [0]

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the numbers of each node, in the order of the nodes. Raises AloneError."""
        own = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        by_node = [torch.empty_like(own) for _ in self._leaders]
        try:
            dist.all_gather(by_node, own, self._group)
        except RuntimeError as error:
            raise _lost_node(error) from None
        return [tensor.tolist() for tensor in by_node]

    def broadcast_first(self, numbers: Sequence[int], text: str = "") -> tuple[list[int], str]:
        """Return the numbers and the text of the first node.

        Args:
            numbers: this node's numbers. Other nodes than the first give as many, which are ignored.
            text: this node's text, ignored on other nodes than the first.

        Raises:
            AloneError: another node is gone or has not answered in time.
        """
        header = torch.tensor([*numbers, len(text.encode())], dtype=torch.int64, device="cpu")
        try:
            dist.broadcast(header, self._leaders[0], self._group)
            *first_numbers, length = header.tolist()
            content = torch.zeros(length, dtype=torch.uint8, device="cpu")
            if length:
                if dist.get_rank() == self._leaders[0]:
                    content = torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
                dist.broadcast(content, self._leaders[0], self._group)
        except RuntimeError as error:
            raise _lost_node(error) from None
        return first_numbers, bytes(content.tolist()).decode()


def _lost_node(error: RuntimeError) -> AloneError:
    cause = str(error).strip().partition("\n")[0][:200]
    return AloneError(f"cannot go on: a node of the job is gone or does not answer ({cause})")
