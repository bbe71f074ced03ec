"""A rank's snapshots in memory: which slot is written when, and what must not be overwritten yet.

At a step boundary the state is copied into a slot (`slots.py`). A large copy of what only the optimizer
changes runs beside the next forward and backward, and the next optimizer step waits for it. The slot's step
is written to the page after its bytes: what the page says is whole.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ftlaunch_hooks.encode import Json, JsonCache
from ftlaunch_hooks.page import NONE, Page, wait_until
from ftlaunch_hooks.protocol import SLOTS, Flag, Why
from ftlaunch_hooks.slots import Slot, SnapshotError
from ftlaunch_hooks.state import State

__all__ = ["SnapshotError", "Snapshotter"]

INLINE_BYTES = 32 << 20  # copied at the boundary: less than this is not worth a thread

_Pairs = list[tuple[Tensor, Tensor]]  # (from, to)


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

        base: the step this rank has restored from memory. Its slot stays until there is a newer snapshot;
        words of other steps are of an earlier life, and are withdrawn here. So make this before raising
        `Flag.ATTACHED`, which tells the peers that the words are of this life.
        """
        self._state, self._page = state, page
        self._peers = [peer for peer in peers if peer.path != page.path]
        self._slots = [Slot(directory, rank, number) for number in range(SLOTS)]
        self._versions = json.dumps(dict(versions))
        self._json = JsonCache()
        self._newest = NONE
        self._newest_slot = self._held_slot = NONE
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
        """The newest step that this rank has committed in this life; NONE before the first."""
        return self._newest

    def take(self, step: int, hold: Why | None = None) -> None:
        """Take the snapshot of `step`, at its boundary; `hold` keeps it for the saver, and says why.

        Waits until every rank has the snapshot before this one; returns without a snapshot when this rank is
        told to leave meanwhile. Raises SnapshotError when memory is short, StateError when the state cannot
        be saved, and what a copy in the background has raised.
        """
        self.fence()
        if not wait_until(self._may_go_on, math.inf) or self._page.leave:
            return
        collected = self._state.collect()
        common = self._common_json(step, collected.state)
        number = self._choose()
        slot = self._slots[number]
        self._page.set_slot(number, NONE)
        slot.lay_out(collected.items)
        now, later = _divide(slot)
        _copy(now)
        if not later:
            self._commit(number, common, step, hold)
            return
        streams = _SideStreams(later)

        def copy_and_commit() -> None:
            with streams:
                _copy(later)
            self._commit(number, common, step, hold)

        self._copying = self._thread.submit(copy_and_commit)

    def fence(self) -> None:
        """Wait for the copy in the background; raises what it has raised."""
        if (copying := self._copying) is not None:
            self._copying = None
            copying.result()

    def slot_files(self, step: int) -> tuple[dict[str, int], bytes]:
        """Descriptors by group (not to be closed) and common.json of a committed snapshot of this life.

        Raises LookupError when there is none of `step`.
        """
        for number, held in enumerate(self._page.slot_steps()):
            if held == step and (files := self._slots[number].files()):
                return files, self._slots[number].read_common()
        raise LookupError(f"cannot read the snapshot of step {step}: no slot holds it")

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

    def _may_go_on(self) -> bool:
        """Whether every peer has the newest snapshot, so that the one before is not needed any more."""
        return self._newest == NONE or self._page.leave or all(map(self._has_newest, self._peers))

    def _has_newest(self, peer: Page) -> bool:
        alive = peer.attempt == self._page.attempt and Flag.ATTACHED in peer.flags
        return alive and self._newest in peer.slot_steps()

    def _choose(self) -> int:
        """A slot to write to: not the newest, not one the saver reads; if possible one that has its memory."""
        kept = {self._newest_slot}
        if self._page.save_step > self._page.saved:
            kept.add(self._held_slot)
        if self._page.reading != NONE:  # perhaps a step of an earlier attempt
            kept |= {n for n, step in enumerate(self._page.slot_steps()) if step == self._page.reading}
        free = [number for number in range(SLOTS) if number not in kept]
        return min(free, key=lambda number: (not self._slots[number].exists, number))

    def _common_json(self, step: int, state: Mapping[str, Mapping[str, Json]]) -> bytes:
        head = f'"step":{step},"consumed_samples":{self._page.consumed},"versions":{self._versions}'
        return f'{{{head},"state":{self._json.dumps(state)}}}'.encode()

    def _commit(self, number: int, common: bytes, step: int, hold: Why | None) -> None:
        self._slots[number].write_common(common)
        self._page.set_slot(number, step)
        self._newest, self._newest_slot = step, number
        if hold is not None:
            self._held_slot = number
            self._page.hold_for_saver(step, hold)


def _divide(slot: Slot) -> tuple[_Pairs, _Pairs]:
    """What must be copied at the boundary, and what may be copied until the next optimizer step."""
    now: _Pairs = []
    later: _Pairs = []
    for item, target in zip(slot.items, slot.tensors, strict=True):
        beside = item.settled and item.tensor.device.type in ("cpu", "cuda")
        (later if beside else now).append((item.tensor, target))
    if sum(target.nbytes for _, target in later) <= INLINE_BYTES:
        return now + later, []
    return now, later


def _copy(pairs: _Pairs) -> None:
    """Copy all at once, the interpreter's lock released."""
    if pairs:
        sources, targets = zip(*pairs, strict=True)
        torch._foreach_copy_(list(targets), list(sources))


class _SideStreams:
    """Streams of their own for copies from GPUs, after what the training loop has queued so far."""

    def __init__(self, pairs: _Pairs) -> None:
        devices = {source.device for source, _ in pairs if source.device.type == "cuda"}
        self._events = {device: torch.cuda.current_stream(device).record_event() for device in devices}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        for device, event in self._events.items():
            stream = torch.cuda.Stream(device)
            stream.wait_event(event)
            self._stack.enter_context(torch.cuda.stream(stream))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stack.close()
