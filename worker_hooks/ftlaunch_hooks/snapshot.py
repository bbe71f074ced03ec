"""A rank's snapshots in memory: which slot is written when, and what must not be overwritten yet.

At a step boundary the state is copied into a slot (`slots.py`). A large copy of what only the optimizer
changes runs beside the next forward and backward, and the next optimizer step waits for it. The slot's step
is written to the page after its bytes: what the page says is whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from ftlaunch_hooks.copies import SideStreams
from ftlaunch_hooks.encode import Json, JsonCache
from ftlaunch_hooks.page import NONE, Page, wait_until
from ftlaunch_hooks.protocol import SLOTS, Flag, Why
from ftlaunch_hooks.slots import Slot, SnapshotError
from ftlaunch_hooks.state import State

__all__ = ["SnapshotError", "Snapshotter"]


class Snapshotter:
    """Keeps the newest steps of one rank in memory."""

    def __init__(
        self,
        state: State,
        page: Page,
        peers: Sequence[Page],
        directory: Path,
        rank: int,
        versions: Mapping[str, str],
        base: int = NONE,
    ) -> None:
        """peers: the pages of all ranks, this one's included. directory: of pages and slots.

        base: the step that all ranks have just restored from memory; it counts as the newest snapshot. Words
        of other steps are of an earlier life, and are withdrawn here. So make this before raising
        `Flag.ATTACHED`, which tells the peers that the words are of this life.
        """
        self._state, self._page = state, page
        self._peers = [peer for peer in peers if peer.path != page.path]
        self._slots = [Slot(directory, rank, number) for number in range(SLOTS)]
        self._versions = json.dumps(dict(versions))
        self._json = JsonCache()
        self._newest, self._newest_slot = base, NONE
        for number, step in enumerate(page.slot_steps()):
            if step not in (base, page.reading):
                page.set_slot(number, NONE)
            elif step == base != NONE:
                self._newest_slot = number
        self._thread = ThreadPoolExecutor(1, "ftlaunch-snapshot")
        self._copying: Future[None] | None = None
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    @property
    def newest(self) -> int:
        """The newest step that this rank has in memory; NONE before the first."""
        return self._newest

    def take(self, step: int, hold: Why | None = None) -> None:
        """Take the snapshot of `step`, at its boundary; `hold` keeps it for the saver, and says why.

        Waits until every rank has the snapshot before this one (and for a slot, when the saver reads two);
        returns without a snapshot when this rank is told to leave meanwhile. Raises SnapshotError when memory
        is short, StateError when the state cannot be saved, and what a copy in the background has raised.
        """
        self.fence()
        collected = self._state.collect()
        common = self._common_json(step, collected.state)
        number = self._vacate()
        if number is None:
            return
        slot = self._slots[number]
        slot.lay_out(collected.items)
        slot.now.run()
        if not slot.later.nbytes:
            self._commit(number, common, step, hold)
            return
        streams = SideStreams(slot.later)

        def copy_and_commit() -> None:
            with streams:
                slot.later.run()
            self._commit(number, common, step, hold)

        self._copying = self._thread.submit(copy_and_commit)

    def fence(self) -> None:
        """Wait for the copy in the background; raises what it has raised."""
        if (copying := self._copying) is not None:
            self._copying = None
            copying.result()

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

    # --- inside --------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: object, args: Any, kwargs: Any) -> None:
        """Before any optimizer's step: what it is about to change must have been copied."""
        self.fence()

    def _vacate(self) -> int | None:
        """Wait for a slot that may be overwritten, and withdraw its word; None when told to leave."""
        free: list[int] = []

        def ready() -> bool:
            free[:] = self._free() if all(map(self._has_newest, self._peers)) else []
            return self._page.leave or bool(free)

        while wait_until(ready, math.inf) and not self._page.leave:
            steps = self._page.slot_steps()
            # the oldest, if possible one that has its memory already
            number = min(free, key=lambda n: (not self._slots[n].exists, steps[n]))
            self._page.set_slot(number, NONE)
            if self._page.reading != steps[number] or steps[number] == NONE:
                return number
            self._page.set_slot(number, steps[number])  # the saver has just chosen it
        return None

    def _has_newest(self, peer: Page) -> bool:
        """Whether the snapshot before this rank's newest is not needed any more as far as this peer goes."""
        if self._newest == NONE:
            return True
        alive = peer.attempt == self._page.attempt and Flag.ATTACHED in peer.flags
        return alive and self._newest in peer.slot_steps()

    def _free(self) -> list[int]:
        """The slots that may be written to: not the newest, not one that is for the saver."""
        page, steps = self._page, self._page.slot_steps()
        busy = {page.reading} - {NONE}  # perhaps a step of an earlier attempt
        if page.save_step > page.saved:
            busy.add(page.save_step)
        return [n for n in range(SLOTS) if n != self._newest_slot and steps[n] not in busy]

    def _common_json(self, step: int, state: Mapping[str, Mapping[str, Json]]) -> bytes:
        head = f'"step":{step},"consumed_samples":{self._page.consumed},"versions":{self._versions}'
        return f'{{{head},"state":{self._json.dumps(state)}}}'.encode()

    def _commit(self, number: int, common: bytes, step: int, hold: Why | None) -> None:
        self._slots[number].write_common(common)
        self._page.set_slot(number, step)
        self._newest, self._newest_slot = step, number
        if hold is not None:
            self._page.hold_for_saver(step, hold)
