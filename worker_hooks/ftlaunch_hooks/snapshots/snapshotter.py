"""A rank's snapshots: which slot is written when, and what must not be overwritten yet.

At a step boundary the state is copied into a slot (`slot.py`). A large copy of what only the optimizer
changes runs beside the next forward and backward, and the next optimizer step waits for it. The slot's step
is written to the page after its bytes: what the page says is whole.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from ftlaunch_contract.checkpoint import health_mark
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import MEMORY_SLOTS, STAGED, Why
from ftlaunch_hooks.observe.replica_digests import Agreement
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.copies import BackgroundCopy
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.slot import NoRoomError, Slot, SnapshotError, bytes_needed
from ftlaunch_hooks.snapshots.slot_policy import SlotPolicy
from ftlaunch_hooks.state.collector import Collected, TensorItem
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.json_codec import JsonCache

__all__ = ["SnapshotError", "Snapshotter"]


@dataclass(frozen=True)
class Snapshot:
    """One to be taken."""

    step: int
    consumed: int  # samples
    collected: Collected
    hold: Why | None  # held for the saver, and why
    trouble: str  # why it is not to be trusted
    part: int | None  # of the replicas, to be compared with the other ranks'


class Snapshotter:
    """Keeps the newest steps of one rank in memory."""

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
        """peers: the pages of all ranks, this one's included. directory: of pages and slots.

        base: the step that all ranks have just restored from memory; it counts as the newest snapshot. Words
        of other steps are of an earlier life, and are withdrawn here. storage: the directory for a slot on
        storage, where there is no room in memory; made when it is needed.
        """
        self._state, self._page = state, page
        self.room = MemoryBudget(rank, peers, directory)
        self.trouble = ""  # why a snapshot of this moment is not to be trusted; set by who knows
        self.agreement: Agreement | None = None  # set where replicas are compared
        self.spent = 0.0  # seconds the training loop has waited for snapshots so far; not for other ranks
        self._slots = [Slot(directory, rank, number) for number in range(MEMORY_SLOTS)]
        self._slots.append(Slot(directory, rank, STAGED, storage or directory / "storage"))
        self._versions = json.dumps(dict(versions))
        self._json = JsonCache()
        self._measured: list[TensorItem] | None = None
        self._need = 0
        self._begin_from(base)
        self._thread = ThreadPoolExecutor(1, "ftlaunch-snapshot")
        self._copying: Future[None] | None = None
        self._flight: BackgroundCopy | None = None
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    @property
    def newest(self) -> int:
        """The newest step that this rank has in memory; NONE before the first."""
        return self._newest

    def fit(self, step: int) -> None:
        """All ranks at the boundary of `step`: agree on how many slots there is room for.

        Every step that not all ranks have is withdrawn. Raises StateError when the state cannot be saved.
        """
        self.settle()
        self._measure(self._state.collect())
        base = self.room.meet(step, self._need, sum(slot.memory for slot in self._slots))
        if base is not None:
            self._begin_from(base)
            self._drop(self._look().surplus(self.room.slots))

    def take(self, step: int, hold: Why | None = None, keep: int = NONE) -> bool:
        """Take the snapshot of `step`, at its boundary; `hold` keeps it for the saver, and says why.

        keep: the step whose slot stays where there are two slots, whatever the page says by now. Waits until
        every rank has the snapshot before this one (and for a slot, when the saver reads two). False: there is
        none, as this rank is told to leave, or there is no room for it. Raises SnapshotError when memory cannot
        be written to, StateError when the state cannot be saved, and what a copy in the background has raised.
        """
        if not self.room.slots and hold is None:
            return False
        self.settle()
        began = time.perf_counter()
        collected = self._state.collect()
        self._measure(collected)
        self.spent += time.perf_counter() - began
        ready = self._peers_are_ready()
        began = time.perf_counter()
        part = self.agreement.due(step, collected.items) if self.agreement is not None else None
        new = Snapshot(step, self._page.consumed, collected, hold, self.trouble, part)
        taken = ready and self._copy(self._vacate(keep), new)
        if hold is not None and not taken:  # it shall not be lost for want of memory
            taken = self._copy(self._vacate(keep, [STAGED]), new)
            if not taken:
                self.room.missed(step)
        self.spent += time.perf_counter() - began
        return taken

    def fence(self) -> None:
        """What follows may change anything: wait for the copy beside the training, or have the GPUs wait for it.

        Raises what the copy has raised.
        """
        began = time.perf_counter()
        if self._copying is None or self._flight is None:
            return
        if not self._flight.hold_back() or self._copying.done():
            self._land()
        self.spent += time.perf_counter() - began

    def settle(self) -> None:
        """Wait until the newest snapshot is whole; raises what its copy has raised."""
        began = time.perf_counter()
        self._land()
        self.spent += time.perf_counter() - began

    def slot_files(self, step: int) -> tuple[dict[str, int], bytes]:
        """Descriptors by group (not to be closed) and common.json of a snapshot; waits for its copy.

        From any thread. Raises LookupError when there is none of `step`.
        """
        if (copying := self._copying) is not None:
            wait([copying])
        if step not in self._page.slot_steps():
            raise LookupError(f"cannot read the snapshot of step {step}: no slot holds it")
        slot = self._slots[self._page.slot_steps().index(step)]
        return slot.files(), slot.read_common()

    def close(self) -> None:
        """Let the copy end, and unmap; the files stay, for the saver or the next attempt."""
        self._hook.remove()
        self._thread.shutdown()
        for slot in self._slots:
            slot.close()

    # --- which slot -----------------------------------------------------------------------------------------

    def _begin_from(self, base: int) -> None:
        """`base` is the newest step that all ranks have; what is not for the saver besides is withdrawn."""
        steps = self._page.slot_steps()
        for number, step in enumerate(steps):
            if step not in self._busy() | {base}:
                self._page.set_slot(number, NONE)
        self._newest = base
        self.room.took(base)
        self._newest_slot = steps.index(base) if base != NONE and base in steps else NONE

    def _busy(self) -> set[int]:
        """The steps that are for the saver."""
        page = self._page
        busy = {page.reading}  # perhaps a step of an earlier attempt
        if page.save_step > page.saved and not self.room.any_missed(page.save_step):
            busy.add(page.save_step)
        return busy - {NONE}

    def _peers_are_ready(self) -> bool:
        """Wait until the snapshot before the newest is not needed any more; False when none is to be taken.

        A rank that is told to leave waits for nobody, but what it can take at once it takes: its step is done.
        """

        def ready() -> bool:
            if self.room.slots < 2:  # the only slot is about to be written over
                return not self._page.leave
            return self._newest == NONE or self.room.all_have(self._newest)

        wait_until(lambda: self._page.leave or self.room.any_failed() or ready(), math.inf)
        return ready() and not self.room.any_failed()

    def _look(self) -> SlotPolicy:
        exists = [slot.exists for slot in self._slots]
        return SlotPolicy(self._page.slot_steps(), exists, self._newest_slot, self._busy())

    def _vacate(self, keep: int, among: list[int] | None = None) -> int | None:
        """Wait for a slot that may be overwritten, and withdraw its word; None when told to leave meanwhile.

        among: the slots that come into question; None: as agreed on.
        """
        page, slots = self._page, self._look()
        self._drop(slots.surplus(self.room.slots))
        chosen, free = slots.used(self.room.slots) if among is None else among, [NONE]

        def ready() -> bool:
            nonlocal slots, free
            slots = self._look()
            free = slots.free(chosen, keep)
            return page.leave or bool(free)

        while wait_until(ready, math.inf) and free:
            number = free[0]
            page.set_slot(number, NONE)
            if page.reading == slots.steps[number] != NONE:
                page.set_slot(number, slots.steps[number])  # the saver has just chosen it
                continue
            if number == self._newest_slot:
                self._newest_slot = slots.holding(keep)
                self._newest = keep if self._newest_slot != NONE else NONE
            return number
        return None

    def _drop(self, surplus: list[int]) -> None:
        """Give back the room of slots that are no longer used."""
        for number in surplus:
            self._page.set_slot(number, NONE)
            self._slots[number].discard()

    # --- the copy -------------------------------------------------------------------------------------------

    def _measure(self, collected: Collected) -> None:
        if collected.items is not self._measured:
            self._measured, self._need = collected.items, bytes_needed(collected.items)
            self.room.noticed(self._need)

    def _copy(self, number: int | None, new: Snapshot) -> bool:
        """Into a slot; False where there is none, or no room."""
        if number is None:
            return False
        slot = self._slots[number]
        try:
            slot.lay_out(new.collected.items)
            slot.now.run()
            if not slot.later.nbytes and not slot.now.gpus:
                self._compare(new)
                self._commit(number, new)
                return True
        except NoRoomError as error:
            self._do_without(number, error)
            return False
        self._flight = flight = BackgroundCopy(slot.now, slot.later)

        def copy_and_commit() -> None:
            flight.run()
            self._compare(new)
            try:
                self._commit(number, new)
            except NoRoomError as error:
                self._do_without(number, error)
                if new.hold is not None:
                    self.room.missed(new.step)

        self._copying = self._thread.submit(copy_and_commit)
        return True

    def _do_without(self, number: int, error: NoRoomError) -> None:
        """There is no snapshot of this step. Where memory is short the ranks will meet about it."""
        say(str(error))
        if number != STAGED:
            self.room.failed()

    def _land(self) -> None:
        if (copying := self._copying) is not None:
            self._copying = None
            copying.result()

    def _before_step(self, optimizer: object, args: Any, kwargs: Any) -> None:
        """Before any optimizer's step: what it is about to change must have been copied."""
        self.fence()

    def _compare(self, new: Snapshot) -> None:
        if self.agreement is not None and new.part is not None:
            self.agreement.tell(new.step, new.part)

    def _common_json(self, slot: Slot, new: Snapshot) -> bytes:
        """What is not a tensor."""
        head = f'"step":{new.step},"consumed_samples":{new.consumed},"versions":{self._versions}'
        head += f',"{health_mark.KEY}":{json.dumps(slot.health(new.trouble, look=new.hold is not None))}'
        return f'{{{head},"state":{self._json.dumps(new.collected.state)}}}'.encode()

    def _commit(self, number: int, new: Snapshot) -> None:
        slot = self._slots[number]
        slot.write_common(self._common_json(slot, new))
        self._page.set_slot(number, new.step)
        self._newest, self._newest_slot = new.step, number
        self.room.took(new.step)
        if new.hold is not None:
            self._page.hold_for_saver(new.step, new.hold)
