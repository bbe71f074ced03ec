"""Restores the slots of lost ranks, byte for byte, from kept copies and from the own slots of other nodes.

Each node in the order is asked what it has. A node that fails is left out, as long as other nodes have its part. Runs
in a thread of the copier's own, with one more thread for each node that is read.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ftlaunch.nodes.channel.framing import FrameError
from ftlaunch.nodes.peers.buddy_link import PeerAddress
from ftlaunch.nodes.peers.copier_node import CopierNode
from ftlaunch.nodes.peers.held.room import check_room, reserve
from ftlaunch.nodes.peers.held.snapshot_files import create_file
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot
from ftlaunch.nodes.peers.plan.fetch_plan import MissingError, described_alike, stretches_of
from ftlaunch.nodes.peers.plan.pieces import Stretch, batches, share_out
from ftlaunch.nodes.peers.source_link import SourceLink
from ftlaunch.nodes.peers.wire.peer_connection import PeerError, why
from ftlaunch_contract.checkpoint import layout

_Failures = (PeerError, FrameError, ValueError, OSError)
_NoThread = RuntimeError
"""raised if no thread can be started"""


class _Supply(NamedTuple):
    """Bytes of a restored file that come from one file of another node."""

    rank: int
    """the rank whose snapshot is restored"""
    group: str
    node: int
    """the node that supplies the bytes"""
    of: int
    """the rank whose snapshot the node reads: `rank` itself for a copy, another rank for a replica"""


@dataclass(frozen=True)
class FetchOrder:
    """What to fetch, and from where."""

    lineage: str
    step: int
    slots: Mapping[int, int]
    """rank -> the slot to restore"""
    holders: Mapping[int, Sequence[PeerAddress]]
    """rank -> nodes that keep a copy of its snapshot"""
    suppliers: Sequence[PeerAddress]
    """nodes whose own ranks hold the step"""

    @property
    def sources(self) -> dict[int, PeerAddress]:
        """All nodes to ask, by number."""
        groups = [*self.holders.values(), self.suppliers]
        return {where.node: where for group in groups for where in group}


class Fetch:
    """One fetch. `run` is called in a thread of its own, `cancel` in another."""

    def __init__(self, node: CopierNode, order: FetchOrder, send_answer: Callable[[dict[str, Any]], None]) -> None:
        """Prepare a fetch.

        Args:
            node: the state of this copier.
            order: what to fetch.
            send_answer: called with the answer `fetch_plan` before the first byte is read.
        """
        self._node = node
        self._order = order
        self._send_answer = send_answer
        self._own = node.attempt.slots.ranks if node.attempt is not None else range(0)
        self._links: dict[int, SourceLink] = {}  # by node
        self._failed: set[int] = set()  # nodes
        self._complaints_by_node: dict[int, str] = {}
        self._commons: dict[int, bytes] = {}  # content of common.json by rank
        # rank -> node -> what the node has of the rank's snapshot; and node -> the snapshots of its own ranks
        self._copies: dict[int, dict[int, DescribedSlot]] = {rank: {} for rank in order.slots}
        self._supplied: dict[int, list[DescribedSlot]] = {}
        self._read: Counter[_Supply] = Counter()  # bytes that were read
        self._lock = threading.Lock()
        self._cancelled = False

    def run(self) -> dict[str, Any]:
        """Fetch, and delete what was made if that fails.

        Returns:
            The answer `fetch`: with the sources, or with the reason of the failure.
        """
        began = time.monotonic()
        answer: dict[str, Any] = {"did": "fetch", "step": self._order.step}
        try:
            with ExitStack() as stack:
                self._make(stack)
        except (MissingError, _NoThread, *_Failures) as error:
            self._remove()
            return {**answer, "error": "it was given up" if self._cancelled else why(error) + self._complaints()}
        seconds = round(time.monotonic() - began, 6)
        return {**answer, "bytes": self._read.total(), "seconds": seconds, "sources": _rows(self._read)}

    def cancel(self) -> None:
        """Have `run` end soon with an error."""
        with self._lock:
            self._cancelled = True
            for link in self._links.values():
                link.shut()

    def _complaints(self) -> str:
        return "".join(f"; node {node}: {said}" for node, said in sorted(self._complaints_by_node.items()))

    # --- in parallel at all nodes ------------------------------------------------------------------------------

    def _make(self, stack: ExitStack) -> None:
        """Restore the slots. Raises MissingError if no node has a part."""
        sources = self._order.sources
        with ThreadPoolExecutor(max(len(sources), 1)) as pool:
            stack.callback(self._close)
            list(pool.map(self._ask, sources.values()))
            stretches = stretches_of(self._copies, self._supplied)
            fds = self._lay_out(stack)
            shares = self._share_out(stretches)
            self._report_plan(shares)
            while shares:
                unread = pool.map(lambda share: self._read_from(share[0], share[1], fds), shares.items())
                shares = self._share_out([stretch for stretches in unread for stretch in stretches])
        self._write_commons()

    def _ask(self, where: PeerAddress) -> None:
        """Ask a node what it has. A node that cannot answer counts as having nothing."""
        order = self._order
        try:
            link = SourceLink(where=where, token=self._node.token, lineage=order.lineage, step=order.step)
            with self._lock:
                self._links[where.node] = link
                if self._cancelled:
                    link.shut()
            for rank in (rank for rank, holders in order.holders.items() if where in holders):
                with self._unless_refused(where):
                    [self._copies[rank][where.node]] = link.ask_about(rank, self._node.layouts)
            if where in order.suppliers:
                with self._unless_refused(where):
                    self._supplied[where.node] = link.ask_about(None, self._node.layouts)
        except _Failures as error:
            self._forget(where.node, error)

    @contextmanager
    def _unless_refused(self, where: PeerAddress) -> Iterator[None]:
        """Note a refusal of a node and go on, because the node may have other things."""
        try:
            yield
        except PeerError as error:
            self._complaints_by_node[where.node] = str(error)

    def _forget(self, node: int, error: Exception) -> None:
        """Use a node no longer, because it has failed."""
        self._complaints_by_node[node] = why(error)
        self._failed.add(node)
        for holders in self._copies.values():
            holders.pop(node, None)
        self._supplied.pop(node, None)

    def _share_out(self, stretches: Sequence[Stretch]) -> dict[int, list[Stretch]]:
        try:
            return share_out(stretches, self._failed)
        except LookupError as error:
            [lost] = error.args
            raise MissingError(f"no node is left that has all of the snapshot of rank {lost.rank}") from error

    def _report_plan(self, shares: Mapping[int, Sequence[Stretch]]) -> None:
        """Report which node will supply what, from the snapshot of which rank."""
        planned: Counter[_Supply] = Counter()
        for node, share in shares.items():
            for stretch in share:
                planned[_supply(stretch, node)] += stretch.size
        self._send_answer({"did": "fetch_plan", "step": self._order.step, "sources": _rows(planned)})

    def _read_from(self, node: int, share: Sequence[Stretch], fds: Mapping[tuple[int, str], int]) -> Iterable[Stretch]:
        """Read a share from a node. Return the part that was not read, because the node has failed."""
        left = dict(enumerate(batches(share)))

        def done(number: int) -> None:
            with self._lock:
                for stretch in left.pop(number):
                    self._read[_supply(stretch, node)] += stretch.size

        try:
            self._links[node].read(list(left.values()), fds, done)
        except _Failures as error:
            self._forget(node, error)
        return [stretch for piece in left.values() for stretch in piece]

    # --- files -------------------------------------------------------------------------------------------------

    def _directory(self, rank: int) -> Path:
        return layout.slot_dir(self._node.memory_dir, rank, self._order.slots[rank])

    def _lay_out(self, stack: ExitStack) -> dict[tuple[int, str], int]:
        """Create the files of all slots, and reserve their memory.

        Returns:
            The descriptor by rank and group.
        """
        wanted = {rank: described_alike(rank, holders) for rank, holders in self._copies.items()}
        self._remove()
        sizes = [found.size for slot in wanted.values() for found in slot.layouts.values()]
        check_room(self._node.memory_dir, sum(sizes) + sum(len(slot.common) for slot in wanted.values()))
        fds = {}
        for rank, slot in wanted.items():
            self._directory(rank).mkdir(mode=0o700)
            for group, found in slot.layouts.items():
                fd = create_file(layout.slot_file(self._directory(rank), group), found.header, found.size)
                stack.callback(os.close, fd)
                reserve(fd, [(0, found.size)], self._check_not_cancelled)
                fds[rank, group] = fd
        self._commons = {rank: slot.common for rank, slot in wanted.items()}
        return fds

    def _check_not_cancelled(self) -> None:
        """Raise PeerError if the fetch was cancelled."""
        if self._cancelled:
            raise PeerError("it was given up")

    def _write_commons(self) -> None:
        for rank, common in self._commons.items():
            path = self._directory(rank) / layout.COMMON
            path.touch(0o600)
            path.write_bytes(common)

    def _remove(self) -> None:
        self._remove_slots(self._order.slots)

    def remove_for_others(self) -> None:
        """Delete what was fetched for ranks of other nodes. Call this after `run` has ended."""
        self._remove_slots(rank for rank in self._order.slots if rank not in self._own)

    def _remove_slots(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            directory = self._directory(rank)
            if directory.exists() or directory.is_symlink():
                layout.remove_slot(directory)

    def _close(self) -> None:
        for link in self._links.values():
            link.close()


def _supply(stretch: Stretch, node: int) -> _Supply:
    of, *_ = stretch.sources[node]
    return _Supply(rank=stretch.rank, group=stretch.group, node=node, of=of)


def _rows(supplies: Mapping[_Supply, int]) -> list[dict[str, Any]]:
    """Return a row for each supply, with its bytes."""
    return [{**supply._asdict(), "bytes": amount} for supply, amount in sorted(supplies.items())]
