"""Copying tensors into a snapshot slot: at once, or beside the training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from types import TracebackType

import torch
from torch import Tensor

from ftlaunch_hooks.items import Item

INLINE_BYTES = 32 << 20  # copied at the boundary: less than this is not worth a thread


class Copies:
    """Tensors, and where each is copied to."""

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]] = ()) -> None:
        """pairs: (from, to), of one shape and dtype."""
        chosen = list(pairs)
        self.sources = [source for source, _ in chosen]
        self.targets = [target for _, target in chosen]
        self.nbytes = sum(target.nbytes for target in self.targets)

    def run(self) -> None:
        """Copy all, the interpreter's lock released once for the lot."""
        if self.sources:
            torch._foreach_copy_(self.targets, self.sources)


def divide(items: Sequence[Item], targets: Sequence[Tensor]) -> tuple[Copies, Copies]:
    """What must be copied at the step boundary, and what may be copied until the next optimizer step."""
    now: list[tuple[Tensor, Tensor]] = []
    later: list[tuple[Tensor, Tensor]] = []
    for item, target in zip(items, targets, strict=True):
        beside = item.settled and item.tensor.device.type in ("cpu", "cuda")
        (later if beside else now).append((item.tensor, target))
    if sum(target.nbytes for _, target in later) <= INLINE_BYTES:
        return Copies(now + later), Copies()
    return Copies(now), Copies(later)


class SideStreams:
    """Streams of their own for copies from GPUs, after what the training loop has queued so far."""

    def __init__(self, copies: Copies) -> None:
        """Made in the training loop's thread, entered in the one that copies."""
        devices = {source.device for source in copies.sources if source.device.type == "cuda"}
        self._events = {device: torch.cuda.current_stream(device).record_event() for device in devices}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        for device, event in self._events.items():
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_event(event)
            self._stack.enter_context(torch.cuda.stream(stream))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stack.close()
