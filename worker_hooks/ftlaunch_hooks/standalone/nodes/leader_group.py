"""The first ranks of all nodes, on a gloo group of their own: a few numbers, and now and then a sentence.

The group is made with torch's public API out of the job's own process group. A node that dies closes its connections,
so that whoever waits for it gets an error at once; a node that falls silent is waited for as long as the group's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ftlaunch_hooks.standalone.settings import AloneError


class PendingMaximum:
    """A maximum that is being made."""

    def __init__(self, group: Any, numbers: Sequence[int]) -> None:
        """Begin, and wait for nothing. An error is told by `result`, which a script that ends does not ask."""
        self._numbers = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self._error: AloneError | None = None
        try:
            self._work: Any = dist.all_reduce(self._numbers, dist.ReduceOp.MAX, group, async_op=True)
        except RuntimeError as error:
            self._error = _unheard(error)

    def result(self) -> list[int]:
        """The largest of each number over all nodes; waits for it. Raises AloneError."""
        if self._error is not None:
            raise self._error
        try:
            self._work.wait()
        except RuntimeError as error:
            raise _unheard(error) from None
        found: list[int] = self._numbers.tolist()
        return found


class LeaderGroup:
    """One group. Each is used by one thread at a time, in the same order on all nodes."""

    def __init__(self, leaders: Sequence[int], seconds: float) -> None:
        """Every rank of the job must make it. leaders: the first ranks of the nodes, which may use it.

        seconds: for which a call waits for another node, the making included. Raises AloneError.
        """
        self._leaders = leaders
        try:
            self._group = dist.new_group(list(leaders), timeout=timedelta(seconds=seconds), backend="gloo")
        except RuntimeError as error:
            raise _unheard(error) from None

    def begin_maximum(self, numbers: Sequence[int]) -> PendingMaximum:
        """Begin to find the largest of each number over all nodes."""
        return PendingMaximum(self._group, numbers)

    def all_say_yes(self, answer: bool) -> bool:
        """Whether `answer` is True on all nodes. Raises AloneError."""
        return self.begin_maximum([not answer]).result() == [0]

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of each node, in the order of the nodes. Raises AloneError."""
        own = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        found = [torch.empty_like(own) for _ in self._leaders]
        try:
            dist.all_gather(found, own, self._group)
        except RuntimeError as error:
            raise _unheard(error) from None
        return [one.tolist() for one in found]

    def hear_first(self, numbers: Sequence[int], text: str = "") -> tuple[list[int], str]:
        """What the first node says; the other nodes give as many numbers, which do not count. Raises AloneError."""
        words = torch.tensor([*numbers, len(text.encode())], dtype=torch.int64, device="cpu")
        try:
            dist.broadcast(words, self._leaders[0], self._group)
            *found, length = words.tolist()
            said = torch.zeros(length, dtype=torch.uint8, device="cpu")
            if length:
                if dist.get_rank() == self._leaders[0]:
                    said = torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
                dist.broadcast(said, self._leaders[0], self._group)
        except RuntimeError as error:
            raise _unheard(error) from None
        return found, bytes(said.tolist()).decode()


def _unheard(error: RuntimeError) -> AloneError:
    cause = str(error).strip().partition("\n")[0][:200]
    return AloneError(f"cannot go on: a node of the job is gone or does not answer ({cause})")
