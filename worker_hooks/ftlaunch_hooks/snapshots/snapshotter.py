"""Takes a rank's snapshots at step boundaries.

At a boundary the training thread copies the state into a slot (slots.py, copies.py). Where devices have room for a
private copy of what lies on them (private_room.py), a thread of the Snapshotter brings that copy to the slot while
training goes on. The slot's step is written to the page after the slot's bytes, so what the page names is whole.

Words:

- Slot: the place of one snapshot of one rank, a directory with tensor files and common.json. A rank has a few slots in
  memory (/dev/shm), and a staged one: a slot on storage (STAGED), used where there is no room in memory.
- Page: a small file of each rank in /dev/shm, by which the rank, the supervisor, the saver and the other ranks of the
  node tell each other what they do. A page names the step that each slot holds.
- Saver: the process that writes checkpoints to storage, from slots.
- Held: a snapshot for the saver is held. Its slot is not overwritten before the saver has read it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from ftlaunch_contract.checkpoint import health_mark, layout
from ftlaunch_contract.checkpoint.metadata import Trainings
from ftlaunch_contract.checkpoint.seeds import Seeds
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.protocol import PEER_SLOTS, STAGED, Why
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.observe.replica_digests import ReplicaDigests
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.copies import Copies
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.private_room import PrivateRoom
from ftlaunch_hooks.snapshots.slot import Slot, bytes_needed
from ftlaunch_hooks.snapshots.slot_file import NoRoomError
from ftlaunch_hooks.snapshots.slots import Slots
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder
from ftlaunch_hooks.state.collector import Collected, TensorItem
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.json_codec import JsonCache

_TRIES = 3  # of copying a state to which a thread of the script writes
_MIN_PAUSE_SECONDS = 0.001  # least wait for writes that began before a copy
_TORN = (
    "a thread writes to `{name}` while a snapshot copies it ({tries} times out of {tries}): the snapshot may hold parts"
    " of two of its values, and a run that resumes from it is not exact; let state_dict() return copies that are made"
    " under the thread's lock"
)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that is to be taken."""

    step: int
    consumed: int  # samples consumed over all ranks
    collected: Collected  # the state at the boundary, whose tensors are not copied yet
    hold: Why | None  # why it is held for the saver; None: it is not held
    trouble: str  # why it is not to be trusted; empty: nothing is known against it
    part: int | None  # the part of the replicas to digest for a comparison with other ranks; None: no part


class Snapshotter:
    """Keeps the newest steps of one rank in memory.

    Used by the training thread, except for `slot_files`.

    Attributes:
        budget: the memory for snapshots, on which the ranks of the node agree.
        trouble: why a snapshot of this moment is not to be trusted; empty: nothing is known. The training loop sets it.
        digests: hashes replicas for the supervisor; None: replicas are not compared.
        trainings: the trainings of this process so far, for common.json.
        seeds: the seeds of this rank's process, for common.json.
        spent: seconds that the training loop has waited for snapshots so far, but not for other ranks.
        laying_out: seconds, a part of `spent`, in which slots got their first files.
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
        self._state = state
        self._page = page
        self.budget = MemoryBudget(rank, peers, directory, first=state.node.first)
        self._progress = self.budget.progress
        self.trouble = ""
        self.digests: ReplicaDigests | None = None
        self.trainings = Trainings()
        self.seeds = Seeds()
        self.spent = 0.0
        self.laying_out = 0.0
        slots = [Slot(directory, rank, number) for number in range(PEER_SLOTS)]
        slots.append(Slot(directory, rank, STAGED, storage=storage or directory / "storage"))
        self._slots = Slots(page, self.budget, slots)
        self._slots.begin_from(base)
        self._versions = json.dumps(dict(versions))
        self._json = JsonCache()
        self._private_room = PrivateRoom()
        self._measured: list[TensorItem] | None = None  # the items of which `_need` was computed
        self._need = 0  # bytes that one snapshot takes
        self._thread = ThreadPoolExecutor(1, "ftlaunch-snapshot")
        self._copying: Future[None] | None = None  # the copy in the snapshot thread; None after `settle`
        self._knows_of_writes = False  # whether a thread of the script was seen to write during a copy
        self._has_warned_of_writes = False

    @property
    def newest(self) -> int:
        """Return the newest step that this rank has in memory; NONE before the first."""
        return self._slots.newest

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
        self.trainings = trainings

    # --- at a step boundary, in this order --------------------------------------------------------------------

    def boundary(self, step: int, order: BoundaryOrder, announce: Callable[[int], None]) -> bool:
        """Do at the boundary of `step` what `order` says.

        Args:
            step: the boundary.
            order: what all ranks do there.
            announce: called with the next step before the copy, so that no rank waits for this one's copy to learn what
                happens there.

        Returns:
            Whether a snapshot was taken, as `take` returns.

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
        return self.take(step, order.hold, order.keep)

    def fit(self, step: int) -> None:
        """Agree with the node's ranks on how many slots there is room for.

        All these ranks call this at the boundary of `step`. Each waits until all have called it, unless this rank is
        told to leave or another has left its loop. Every step that not all of them have is withdrawn.

        Raises:
            StateError: the state cannot be saved.
            Exception: whatever a copy in the background has raised.
        """
        self.settle()
        self._measure(self._state.collect(step))
        base = self.budget.agree(step, self._need, self._slots.memory)
        if base is not None:
            self._slots.begin_from(base)
            self._slots.discard_surplus()

    def take(self, step: int, hold: Why | None = None, keep: int = NONE) -> bool:
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
        device_port.wait_for_devices()  # state_dict() may read what a queued copy still writes to
        collected = self._state.collect(step)
        self._state.sample(collected)
        self._measure(collected)
        self.spent += time.perf_counter() - began
        ready = self._slots.wait_for_peers(step)
        if self._slots.left_behind(step):
            if hold is not None:
                self._progress.missed(step)
            return False
        began = time.perf_counter()
        part = self.digests.due(step, collected.items) if self.digests is not None else None
        new = Snapshot(
            step=step,
            consumed=self._page.consumed,
            collected=collected,
            hold=hold,
            trouble=self.trouble,
            part=part,
        )
        taken = ready and self._copy(self._slots.vacate(keep), new)
        if hold is not None and not taken:  # what the saver waits for is taken even without memory, on storage
            taken = self._copy(self._slots.vacate_staged(keep), new)
            if not taken:
                self._progress.missed(step)
        self.spent += time.perf_counter() - began
        return taken

    def warn_of_leaver(self, step: int) -> None:
        """Warn once if a rank has left its loop before `step`, because no step is kept from then on."""
        self._slots.left_behind(step)

    def _measure(self, collected: Collected) -> None:
        """Compute what a snapshot takes, and compare that with the memory agreed on, where the tensors are others."""
        if collected.items is not self._measured:
            self._measured = collected.items
            self._need = bytes_needed(collected.items)
            self.budget.noticed(self._need)

    def _copy(self, number: int | None, new: Snapshot) -> bool:
        """Copy the state into a slot, or begin to in the background. Return False where there is no slot or no room."""
        if number is None:
            return False
        slot = self._slots[number]
        try:
            is_first = not slot.exists
            began = time.perf_counter()
            slot.lay_out(new.collected.items)
            if is_first:
                self.laying_out += time.perf_counter() - began
            self._publish_digest(new)
            private, new = self._copy_untorn(slot, new)
            if private is None:
                self._commit(number, new)
                return True
        except NoRoomError as error:
            self._do_without(number, error)
            return False
        self._copying = self._thread.submit(self._copy_and_commit, private, number, new)
        return True

    def _copy_untorn(self, slot: Slot, new: Snapshot) -> tuple[Copies | None, Snapshot]:
        """Copy the state; if a thread writes to it meanwhile, collect and copy it again, a few times.

        Returns:
            The copies from private sources that are left to be made (None for none), and the snapshot that was copied.
        """
        for tries_left in reversed(range(_TRIES)):
            began = time.perf_counter()
            # This also concerns tensors in this process's memory: state_dict() may have queued copies into them, and
            # offloading optimizers queue copies into pinned memory.
            device_port.wait_for_devices()
            slot.host.run()
            private = slot.device.copy_on_devices() if self._may_copy_privately(slot, new) else None
            if private is None:
                slot.device.run()
            if self._knows_of_writes:
                # torch counts a write to a tensor at the end of the operation that writes. An operation that was under
                # way during the copy is therefore not counted yet. It has most likely ended after a further wait as
                # long as the copy took.
                time.sleep(max(time.perf_counter() - began, _MIN_PAUSE_SECONDS))
            written = new.collected.watch.written()
            if not written:
                break
            self._knows_of_writes = True
            if tries_left:
                if private is not None:
                    self._release(private)
                device_port.wait_for_devices()
                new = replace(new, collected=self._state.collect(new.step))
                self._state.sample(new.collected)
                slot.lay_out(new.collected.items)
            elif not self._has_warned_of_writes:
                self._has_warned_of_writes = True
                say(_TORN.format(name=written[0], tries=_TRIES))
        return private, new

    def _may_copy_privately(self, slot: Slot, new: Snapshot) -> bool:
        """Return whether what lies on devices may be brought to the slot while training goes on."""
        if not slot.device.sources:
            return False
        has_room = self._private_room.has_room(slot.device.bytes_on_devices)
        # The last copy is made in this thread: when the interpreter ends, no other thread takes work any more.
        return has_room and new.hold is not Why.END

    def _release(self, private: Copies) -> None:
        """Free the memory of private copies. The peaks are read first, as the copies are not the script's."""
        self._private_room.read_peaks(private.bytes_on_devices)
        private.release()

    def _copy_and_commit(self, private: Copies, number: int, new: Snapshot) -> None:
        """Bring private copies to their slot and commit it. Runs in the snapshot thread."""
        device_port.prepare_thread(next(iter(private.bytes_on_devices)))
        private.run()
        self._release(private)  # not in the caller: the pool holds the arguments until after the result is known
        try:
            self._commit(number, new)
        except NoRoomError as error:
            self._do_without(number, error)
            if new.hold is not None:
                self._progress.missed(new.step)

    def _publish_digest(self, new: Snapshot) -> None:
        """Write the digest of a part of the replicas to the page, where the supervisor compares the ranks' digests."""
        if self.digests is not None and new.part is not None:
            self.digests.record_digest(new.step, new.part)

    def _commit(self, number: int, new: Snapshot) -> None:
        """Write common.json, then name the step in the page. Raises SnapshotError."""
        slot = self._slots[number]
        slot.write_common(self._common_json(slot, new))
        self._slots.commit(number, new.step)
        if new.hold is not None:
            self._page.hold_for_saver(new.step, new.hold)

    def _common_json(self, slot: Slot, new: Snapshot) -> bytes:
        """Return common.json of the snapshot: everything that is not a tensor."""
        head = f'"step":{new.step},"consumed_samples":{new.consumed},"versions":{self._versions}'
        if new.collected.outside:
            head += f',"{layout.OUTSIDE}":{json.dumps(list(new.collected.outside))}'
        for key, entry in (*self.trainings.entries().items(), *self.seeds.entries().items()):
            head += f',"{key}":{json.dumps(entry)}'
        head += f',"{health_mark.KEY}":{json.dumps(slot.health(new.trouble, should_read=new.hold is not None))}'
        return f'{{{head},"state":{self._json.dumps(new.collected.state)}}}'.encode()

    def _do_without(self, number: int, error: NoRoomError) -> None:
        """Give up the snapshot of this step. Where memory was short, the ranks agree on less at the next step."""
        say(str(error))
        if number != STAGED:
            self._progress.failed()

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
        """Return the descriptors by group, which the caller must not close, and common.json of a snapshot.

        Waits for the snapshot's copy. May be called from any thread.

        Raises:
            LookupError: there is no snapshot of `step`.
            OSError: a file of an earlier attempt's slot cannot be read.
        """
        if (copying := self._copying) is not None:
            wait([copying])
        slot = self._slots.holding(step)
        return slot.files(), slot.read_common()

    def close(self) -> None:
        """Wait for a running copy, and unmap the slots. Their files stay, for the saver or the next attempt."""
        self._thread.shutdown()
        self._slots.close()
