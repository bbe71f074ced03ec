"""Takes the snapshots of a rank that trains with torch.

The order is that of RankSnapshots (rank_snapshots.py, which also explains the words). At a boundary the training thread
copies the state into a slot (slots.py, copies.py). Where devices have room for a private copy of what lies on them
(private_room.py), a thread of the Snapshotter brings that copy to the slot while training goes on. Where they have
none, it brings what an optimizer's step alone changes before the next such step (overlapped_copies.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ftlaunch_contract.checkpoint import health_mark, layout
from ftlaunch_contract.checkpoint.metadata import Trainings
from ftlaunch_contract.checkpoint.seeds import Seeds
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.observe.replica_digests import ReplicaDigests
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.copies import Copies
from ftlaunch_hooks.snapshots.overlapped_copies import BYTES_ON_DEVICE, OverlappedCopies, Overlapping
from ftlaunch_hooks.snapshots.private_room import PrivateRoom
from ftlaunch_hooks.snapshots.rank_snapshots import RankSnapshots, Snapshot
from ftlaunch_hooks.snapshots.slot import Slot, bytes_needed
from ftlaunch_hooks.snapshots.slot_directory import NoRoomError
from ftlaunch_hooks.state.collector import Collected, TensorItem
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.json_codec import JsonCache

_TRIES = 3  # of copying a state to which a thread of the script writes
_LEAST_PREPARED = 32 << 20  # bytes; a smaller slot is laid out in about 20 ms
_MIN_PAUSE_SECONDS = 0.001  # least wait for writes that began before a copy
_TORN = (
    "a thread writes to `{name}` while a snapshot copies it ({tries} times out of {tries}): the snapshot may hold parts"
    " of two of its values, and a run that resumes from it is not exact; let state_dict() return copies that are made"
    " under the thread's lock"
)


_DROPPED = (
    "the snapshot of step {step} is dropped: `{name}`{more} changed before the next step of an optimizer, while it was"
    " copied; from now on it is copied while the loop waits"
)


@dataclass(frozen=True)
class TensorState:
    """The state at a boundary."""

    collected: Collected
    """tensors, which are not copied yet, and the rest"""
    part: int | None
    """the part of the replicas to digest for a comparison with other ranks; None: no part"""


class Snapshotter(RankSnapshots[Slot, TensorState]):
    """The snapshots of one rank's torch tensors.

    Attributes:
        digests: hashes replicas for the supervisor; None: replicas are not compared.
        trainings: the trainings of this process so far, for common.json.
        seeds: the seeds of this rank's process, for common.json.
    """

    def __init__(
        self,
        state: RankState,
        page: Page,
        peers: Sequence[Page],
        directory: Path,
        rank: int,
        versions: Mapping[str, str],
        base: int = NONE,
        storage: Path | None = None,
    ) -> None:
        """Open the slots, and withdraw the steps that an earlier attempt has left in the page.

        Args:
            state: what is saved.
            page: this rank's page.
            peers: the pages of the node's ranks, this one's included.
            directory: the directory of pages and slots.
            rank: this rank's number in the job.
            versions: name -> version of the libraries in use, for common.json.
            base: the step that all ranks have just restored from memory, which counts as the newest snapshot.
            storage: the directory for a slot on storage, used where there is no room in memory; made when needed.
        """
        super().__init__(
            Slot,
            page=page,
            peers=peers,
            directory=directory,
            rank=rank,
            node=state.node,
            base=base,
            storage=storage,
        )
        self._state = state
        self.digests: ReplicaDigests | None = None
        self.trainings = Trainings()
        self.seeds = Seeds()
        self._versions = json.dumps(dict(versions))
        self._json = JsonCache()
        self._private_room = PrivateRoom()
        self._overlapping = Overlapping()
        self._step_hook: RemovableHandle | None = None  # made for the first copies that must end before a step
        self._measured: list[TensorItem] | None = None  # the items of which `_need` was computed
        self._need = 0  # bytes that one snapshot takes
        self._is_state_new = True  # whether the first step may add to the state, as it does to an optimizer's
        self._thread = ThreadPoolExecutor(1, "ftlaunch-snapshot")
        self._copying: Future[None] | None = None  # the copy in the snapshot thread; None after `settle`
        self._must_end_before_step = False  # whether that copy reads what the step of an optimizer changes
        self._knows_of_writes = False  # whether a thread of the script was seen to write during a copy
        self._has_warned_of_writes = False

    @property
    def is_copying(self) -> bool:
        """Return whether a copy of the newest snapshot was begun beside the training and `settle` was not called since.

        The copy itself may have ended already.
        """
        return self._copying is not None

    def turn_to(self, state: RankState, trainings: Trainings) -> None:
        """Take snapshots of another training's state from now on, after the newest snapshot is whole.

        Args:
            state: what is saved from now on: the state of a further training that the script has begun.
            trainings: the trainings up to this one.

        Raises:
            Exception: whatever a copy in the background has raised.
        """
        self.settle()
        self._state = state
        self._is_state_new = True
        self.trainings = trainings

    # --- what RankSnapshots asks for ----------------------------------------------------------------------------

    def _measure(self, step: int) -> int:
        need = self._size_of(self._state.collect(step))
        for slot in self.slots.in_memory():
            slot.end_preparation()  # what is prepared by now counts
        # Rank 0 writes the next order after the agreement: it then knows of every rank that will prepare a slot.
        self._progress.set_preparing(self._may_prepare())
        return need

    def _size_of(self, collected: Collected) -> int:
        """Return what a snapshot takes, and compare that with the memory agreed on, where the tensors are others."""
        if collected.items is not self._measured:
            self._measured = collected.items
            self._need = bytes_needed(collected.items)
            self.budget.noticed(self._need)
        return self._need

    def _collect(self, step: int) -> TensorState:
        collected = self._state.collect(step)
        self._state.sample(collected)
        self._size_of(collected)
        part = self.digests.due(step, collected.items) if self.digests is not None else None
        return TensorState(collected, part)

    def _copy(self, number: int, new: Snapshot[TensorState]) -> None:
        slot = self.slots[number]
        is_first = not slot.is_laid_out
        began = time.perf_counter()
        slot.lay_out(new.state.collected.items)
        if is_first:
            self.laying_out += time.perf_counter() - began
        self._publish_digest(new)
        later, new = self._copy_untorn(slot, new)
        if later is None:
            self.commit(number, new)
            return
        self._must_end_before_step = isinstance(later, OverlappedCopies)
        if isinstance(later, Copies):
            self._copying = self._thread.submit(self._copy_and_commit, later, number, new)
        else:
            if self._step_hook is None:
                self._step_hook = register_optimizer_step_pre_hook(self._before_step)
            self._copying = self._thread.submit(self._overlap_and_commit, later, number, new)

    def _copy_untorn(
        self, slot: Slot, new: Snapshot[TensorState]
    ) -> tuple[Copies | OverlappedCopies | None, Snapshot[TensorState]]:
        """Copy the state; if a thread writes to it meanwhile, collect and copy it again, a few times.

        Returns:
            The copies that are left to be made while training goes on (None for none), from private sources or from the
            script's, and the snapshot that was copied.
        """
        for tries_left in reversed(range(_TRIES)):
            began = time.perf_counter()
            # A thread of the script may have queued more since the state was collected.
            device_port.wait_for_devices()
            slot.host.run()
            later = self._begin_beside(slot, new)
            if later is None:
                slot.device.run()
            if self._knows_of_writes:
                # torch counts a write to a tensor at the end of the operation that writes. An operation that was under
                # way during the copy is therefore not counted yet. It has most likely ended after a further wait as
                # long as the copy took.
                time.sleep(max(time.perf_counter() - began, _MIN_PAUSE_SECONDS))
            written = new.state.collected.watch.written()
            if not written:
                break
            self._knows_of_writes = True
            if tries_left:
                if isinstance(later, Copies):
                    self._release(later)
                collected = self._state.collect(new.step)
                new = replace(new, state=replace(new.state, collected=collected))
                self._state.sample(collected)
                slot.lay_out(collected.items)
            elif not self._has_warned_of_writes:
                self._has_warned_of_writes = True
                say(_TORN.format(name=written[0], tries=_TRIES))
        return later, new

    def _begin_beside(self, slot: Slot, new: Snapshot[TensorState]) -> Copies | OverlappedCopies | None:
        """Begin to copy what lies on devices; the rest of the way it may go while training goes on.

        Returns:
            What is left to be done; None where nothing was begun.
        """
        if not slot.device.sources:
            return None
        has_room = self._private_room.has_room(slot.device.bytes_on_devices)
        if new.hold is Why.END:
            return None  # when the interpreter ends, no other thread takes work any more
        if has_room:
            return slot.device.copy_on_devices()
        # What the saver waits for must not be dropped, nor what overwrites the only snapshot in memory.
        may_drop = new.hold is None and self.budget.has_spare_slot
        if may_drop and self._private_room.has_room_for_buffers(BYTES_ON_DEVICE):
            return self._overlapping.begin(slot.on_devices)
        return None

    def _release(self, private: Copies) -> None:
        """Free the memory of private copies. The peaks are read first, as the copies are not the script's."""
        self._private_room.read_peaks(private.bytes_on_devices)
        private.release()

    def _copy_and_commit(self, private: Copies, number: int, new: Snapshot[TensorState]) -> None:
        """Bring private copies to their slot and commit it. Runs in the snapshot thread."""
        device_port.prepare_thread(next(iter(private.bytes_on_devices)))
        private.run()
        self._release(private)  # not in the caller: the pool holds the arguments until after the result is known
        self._commit_or_do_without(number, new)

    def _commit_or_do_without(self, number: int, new: Snapshot[TensorState]) -> None:
        try:
            self.commit(number, new)
        except NoRoomError as error:
            self._do_without(number, error)
            if new.hold is not None:
                self._progress.missed(new.step)

    def _overlap_and_commit(self, copies: OverlappedCopies, number: int, new: Snapshot[TensorState]) -> None:
        """Bring the script's own tensors to a slot, and commit it if none has changed. Runs in the snapshot thread."""
        device_port.prepare_thread(copies.devices[0])
        if not (changed := copies.run()):
            self._commit_or_do_without(number, new)
            return
        self._overlapping.avoid(changed)
        first, *others = sorted(changed)
        more = f" and {len(others)} more" if others else ""
        say(_DROPPED.format(step=new.step, name=first, more=more))
        self._progress.dropped()

    def _before_step(self, *_: object) -> None:
        """Before a step of an optimizer: wait for copies of what the step is about to change."""
        if (copying := self._copying) is not None and self._must_end_before_step:
            began = time.perf_counter()
            wait([copying])
            self.spent += time.perf_counter() - began

    def _publish_digest(self, new: Snapshot[TensorState]) -> None:
        """Write the digest of a part of the replicas to the page, where the supervisor compares the ranks' digests."""
        if self.digests is not None and new.state.part is not None:
            self.digests.record_digest(new.step, new.state.part)

    def _common_json(self, slot: Slot, new: Snapshot[TensorState]) -> bytes:
        collected = new.state.collected
        head = f'"step":{new.step},"consumed_samples":{new.consumed},"versions":{self._versions}'
        if collected.outside:
            head += f',"{layout.OUTSIDE}":{json.dumps(list(collected.outside))}'
        for key, entry in (*self.trainings.entries().items(), *self.seeds.entries().items()):
            head += f',"{key}":{json.dumps(entry)}'
        health = slot.health(new.trouble, checks_parameters=new.hold is not None)
        head += f',"{health_mark.KEY}":{json.dumps(health)}'
        return f'{{{head},"state":{self._json.dumps(collected.state)}}}'.encode()

    # --- slots of the next snapshots ----------------------------------------------------------------------------

    def fit(self, step: int) -> None:
        """Do what RankSnapshots does, and prepare the slot of the next snapshot.

        The first step makes an optimizer's state. So the ranks agree once more after it, before a snapshot needs a slot
        for that.
        """
        super().fit(step)
        in_memory = self.slots.in_memory()
        if not self.budget.allows(self.slots.memory, 0):
            for slot in in_memory:
                slot.drop_prepared()
        if self._may_prepare() and self._is_state_new:
            self._progress.grew()
        self._is_state_new = False
        if self._measured is not None:
            self._prepare_next(self._measured)

    def commit(self, number: int, new: Snapshot[TensorState]) -> None:
        """Do what RankSnapshots does, and prepare the next snapshot's slot, if one follows. Raises SnapshotError."""
        super().commit(number, new)
        if new.hold not in (Why.STOP, Why.END):
            self._prepare_next(new.state.collected.items)

    def _may_prepare(self) -> bool:
        return self.prepares_slots and self._need >= _LEAST_PREPARED and self.budget.slots > 0

    def _prepare_next(self, items: list[TensorItem]) -> None:
        """Prepare the slot of the next snapshot in a thread, for these items, if that slot is not as they need it."""
        number = self.slots.next_to_write() if self._may_prepare() else None
        for other, slot in enumerate(self.slots.in_memory()):
            if other != number:
                slot.end_preparation()
        self._progress.set_preparing(number is not None)
        if number is not None and not self.slots[number].prepare(
            items, self._has_room_for, on_end=lambda: self._progress.set_preparing(False)
        ):
            self._progress.set_preparing(False)

    def _has_room_for(self, more: int) -> bool:
        return self.budget.allows(self.slots.memory, more)

    # --- between step boundaries ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until the newest snapshot is whole.

        Raises:
            Exception: whatever the copy in the background has raised.
        """
        if (copying := self._copying) is not None:
            began = time.perf_counter()
            self._copying = None
            copying.result()
            self.spent += time.perf_counter() - began

    def slot_files(self, step: int) -> tuple[dict[str, int], bytes]:
        """Return what RankSnapshots returns, after the snapshot's copy has ended. May be called from any thread."""
        if (copying := self._copying) is not None:
            wait([copying])
        return super().slot_files(step)

    def close(self) -> None:
        """Wait for a running copy, and unmap the slots. Their files stay, for the saver or the next attempt."""
        self._thread.shutdown()
        if self._step_hook is not None:
            self._step_hook.remove()
        super().close()
