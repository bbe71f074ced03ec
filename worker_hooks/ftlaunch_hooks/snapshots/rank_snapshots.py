"""Keeps the newest steps of one rank in memory, by rules that all ranks of a node share. Nothing here imports torch.

Whatever framework trains, a snapshot is taken in this order, on which the other ranks, the saver and the supervisor
rely:

1. The snapshot before this one is whole: on this rank (`settle`), and on every rank of the node, so that a step which
   all of them have stays in memory while this rank overwrites an older one.
2. A slot's step is withdrawn from the page before the slot's bytes change.
3. The tensors are written, then common.json, then the step is named in the page. So what the page names is whole.
4. A snapshot for the saver is held last, once the page names its step: the slot is not overwritten before the saver has
   read it. Where memory has no room for such a snapshot, it is written to storage; where it cannot be taken at all, the
   page says that it is missed, so that nobody waits for it.
5. Where there was no room in memory, or a snapshot that was begun is dropped, the page says so, and no rank takes a
   snapshot before the ranks have agreed anew: after a lack of room, on less.

To keep another framework's state, write a subclass of RankSnapshots, which collects the state and copies it, and one of
SlotDirectory, which holds the files. torch's are Snapshotter and Slot, MindSpore's MindSporeSnapshots and ArraySlot.

Words:

- Slot: the place of one snapshot of one rank, a directory with tensor files and common.json. A rank has a few slots in
  memory (/dev/shm), and a staged one: a slot on storage (STAGED), used where there is no room in memory.
- Page: a small file of each rank in /dev/shm, by which the rank, the supervisor, the saver and the other ranks of the
  node tell each other what they do. A page names the step that each slot holds.
- Saver: the process that writes checkpoints to storage, from slots.
- Held: a snapshot for the saver is held. Its slot is not overwritten before the saver has read it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.protocol import PEER_SLOTS, STAGED, Why
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.slot_directory import NoRoomError
from ftlaunch_hooks.snapshots.slots import Slots, SlotT
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder

StateT = TypeVar("StateT")
"""A framework's state at one boundary, whose tensors are not copied yet."""


@dataclass(frozen=True)
class Snapshot(Generic[StateT]):
    """A snapshot that is to be taken."""

    step: int
    consumed: int
    """samples consumed over all ranks"""
    state: StateT
    hold: Why | None
    """why it is held for the saver; None: it is not held"""
    trouble: str
    """why it is not to be trusted; empty: nothing is known against it"""


class RankSnapshots(ABC, Generic[SlotT, StateT]):
    """The snapshots of one rank.

    Used by the training thread, except for `slot_files`.

    Attributes:
        budget: the memory for snapshots, on which the ranks of the node agree.
        slots: the slots by their numbers, for the framework's side.
        find_trouble: returns why a snapshot of this moment is not to be trusted; empty: nothing is known.
        spent: seconds that the training loop has waited for snapshots so far, but not for other ranks.
        laying_out: seconds, a part of `spent`, in which slots got their first files.
        prepares_slots: whether snapshots come at intervals, so that slots may be prepared before they are needed.
    """

    def __init__(
        self,
        slot_type: Callable[..., SlotT],
        page: Page,
        peers: Sequence[Page],
        directory: Path,
        rank: int,
        node: NodeRanks,
        base: int,
        storage: Path | None,
    ) -> None:
        """Open the slots, and withdraw the steps that an earlier attempt has left in the page.

        Args:
            slot_type: the framework's class of slots.
            page: this rank's page.
            peers: the pages of the node's ranks, this one's included.
            directory: the directory of pages and slots.
            rank: this rank's number in the job.
            node: the ranks of the node.
            base: the step that all ranks have just restored from memory, which counts as the newest snapshot, or NONE.
            storage: the directory for a slot on storage, used where there is no room in memory; made when needed.
        """
        self._page = page
        self.budget = MemoryBudget(rank, peers, directory, first=node.first)
        self._progress = self.budget.progress
        self.find_trouble: Callable[[], str] = _find_nothing
        self.spent = 0.0
        self.laying_out = 0.0
        self.prepares_slots = False
        slots = [slot_type(directory, rank, number) for number in range(PEER_SLOTS)]
        slots.append(slot_type(directory, rank, STAGED, storage=storage or directory / "storage"))
        self.slots = Slots(page, self.budget, slots)
        self.slots.begin_from(base)

    @property
    def newest(self) -> int:
        """Return the newest step that this rank has in memory; NONE before the first."""
        return self.slots.newest

    # --- the framework's side -----------------------------------------------------------------------------------

    @abstractmethod
    def _measure(self, step: int) -> int:
        """Return the bytes that a snapshot takes, at the boundary of `step`. Raises StateError."""

    @abstractmethod
    def _collect(self, step: int) -> StateT:
        """Return the state at the boundary of `step`, and tell `budget.noticed` what its snapshot takes.

        Raises:
            StateError: the state cannot be saved.
        """

    @abstractmethod
    def _copy(self, number: int, new: Snapshot[StateT]) -> None:
        """Copy the state into the slot `number` and `commit`; or begin to, in a thread that `settle` waits for.

        Raises:
            NoRoomError: there is no room.
            SnapshotError: the slot cannot be written to for another reason.
        """

    @abstractmethod
    def _common_json(self, slot: SlotT, new: Snapshot[StateT]) -> bytes:
        """Return common.json of the snapshot: everything that is not a tensor."""

    # --- at a step boundary, in this order ------------------------------------------------------------------------

    def follow(self, step: int, order: BoundaryOrder, announce: Callable[[int], None]) -> bool:
        """Do at the boundary of `step` what `order` says.

        Args:
            step: the boundary.
            order: what all ranks do there.
            announce: called with the next step before the copy, so that no rank waits for this one's copy to learn what
                happens there.

        Returns:
            Whether a snapshot was taken, as `capture` returns.

        Raises:
            StateError: the state cannot be saved.
            SnapshotError: memory cannot be written to.
            Exception: whatever a copy in the background has raised.
        """
        if order.agree:
            self.fit(step)
        announce(step + 1)
        if order.hold is None and not order.snapshot:
            return False
        return self.capture(step, order.hold, order.keep)

    def fit(self, step: int) -> None:
        """Agree with the node's ranks on how many slots there is room for.

        All these ranks call this at the boundary of `step`. Each waits until all have called it, unless this rank is
        told to leave or another has left its loop. Every step that not all of them have is withdrawn.

        Raises:
            StateError: the state cannot be saved.
            Exception: whatever a copy in the background has raised.
        """
        self.settle()
        base = self.budget.agree(step, self._measure(step), self.slots.memory)
        if base is not None:
            self.slots.begin_from(base)
            self.slots.discard_surplus()

    def capture(self, step: int, hold: Why | None = None, keep: int = NONE) -> bool:
        """Take the snapshot of `step`, at its boundary.

        Waits until every rank of the node has the snapshot before this one, and for a slot where the saver reads two.

        Args:
            step: the boundary.
            hold: why the snapshot is held for the saver; None: it is not held.
            keep: the step whose slot stays where there are two slots, whatever the page says by now.

        Returns:
            Whether the snapshot was taken, or its copy has begun in the background; `settle` waits for such a copy,
            which may still find no room for common.json. False: this rank is told to leave, another has left its loop
            before, or there is no room.

        Raises:
            SnapshotError: memory cannot be written to.
            StateError: the state cannot be saved.
            Exception: whatever a copy in the background has raised.
        """
        if not self.budget.slots and hold is None:
            return False
        self.settle()
        began = time.perf_counter()
        state = self._collect(step)
        self.spent += time.perf_counter() - began
        ready = self.slots.wait_for_peers(step)
        if self.slots.left_behind(step):
            if hold is not None:
                self._progress.missed(step)
            return False
        began = time.perf_counter()
        new = Snapshot(
            step=step,
            consumed=self._page.consumed,
            state=state,
            hold=hold,
            trouble=self.find_trouble(),
        )
        captured = ready and self._copy_if_room(self.slots.vacate(keep), new)
        if hold is not None and not captured:  # what the saver waits for is taken even without memory, on storage
            captured = self._copy_if_room(self.slots.vacate_staged(keep), new)
            if not captured:
                self._progress.missed(step)
        self.spent += time.perf_counter() - began
        return captured

    def warn_of_leaver(self, step: int) -> None:
        """Warn once if a rank has left its loop before `step`, because no step is kept from then on."""
        self.slots.left_behind(step)

    def _copy_if_room(self, number: int | None, new: Snapshot[StateT]) -> bool:
        """Copy the state into a slot, or begin to in the background. Return False where there is no slot or no room."""
        if number is None:
            return False
        try:
            self._copy(number, new)
        except NoRoomError as error:
            self._do_without(number, error)
            return False
        return True

    def commit(self, number: int, new: Snapshot[StateT]) -> None:
        """Write common.json, then name the step in the page. The slot's tensors are whole. Raises SnapshotError."""
        slot = self.slots[number]
        slot.write_common(self._common_json(slot, new))
        self.slots.commit(number, new.step)
        if new.hold is not None:
            self._page.hold_for_saver(new.step, new.hold)

    def _do_without(self, number: int, error: NoRoomError) -> None:
        """Give up the snapshot of this step. Where memory was short, the ranks agree on less at the next step."""
        say(str(error))
        if number != STAGED:
            self._progress.found_no_room()

    # --- between step boundaries ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until the newest snapshot is whole. There is nothing to wait for where `_copy` copies at once.

        Raises:
            Exception: whatever a copy in the background has raised.
        """

    def slot_files(self, step: int) -> tuple[dict[str, int], bytes]:
        """Return the descriptors by group, which the caller must not close, and common.json of a snapshot.

        May be called from any thread.

        Raises:
            LookupError: there is no snapshot of `step`.
            OSError: a file of an earlier attempt's slot cannot be read.
        """
        slot = self.slots.holding(step)
        return slot.files(), slot.read_common()

    def close(self) -> None:
        """Close the slots. Their files stay, for the saver or the next attempt."""
        self.slots.close()


def _find_nothing() -> str:
    """Return that nothing is known against a snapshot."""
    return ""
