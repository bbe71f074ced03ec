"""Copies tensors into a snapshot slot: at once, or beside the training."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ftlaunch_hooks.state.collector import TensorItem

INLINE_BYTES = 1 << 20  # so little is copied at the boundary: a thread would cost more

_Pairs = list[tuple[Tensor, Tensor]]


class Copies:
    """Tensors, and the tensor that each is copied to."""

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]] = ()) -> None:
        """pairs: (from, to), of one shape and dtype."""
        chosen = list(pairs)
        self.sources = [source for source, _ in chosen]
        self.targets = [target for _, target in chosen]
        self.nbytes = sum(target.nbytes for target in self.targets)
        self.gpus = {source.device for source in self.sources if source.device.type == "cuda"}

    def run(self) -> None:
        """Copy all in one call, which releases the interpreter's lock once. Copies from GPUs are only queued."""
        if self.sources:
            torch._foreach_copy_(self.targets, self.sources, bool(self.gpus))


def divide(items: Sequence[TensorItem], targets: Sequence[Tensor]) -> tuple[Copies, Copies]:
    """The copies for the step boundary, and those that may run until the next optimizer step."""
    now: _Pairs = []
    later: dict[str, _Pairs] = {"cpu": [], "cuda": []}
    for item, target in zip(items, targets, strict=True):
        beside = later.get(item.tensor.device.type) if item.settled else None
        (now if beside is None else beside).append((item.tensor, target))
    if sum(target.nbytes for _, target in later["cpu"]) <= INLINE_BYTES:
        now += later.pop("cpu")
    return Copies(now), Copies(pair for pairs in later.values() for pair in pairs)


class BackgroundCopy:
    """A copy beside the training. The training loop's thread makes it, the snapshot thread runs it.

    Copies from GPUs go through streams of their own, after what the training loop has queued so far; nothing in
    the training loop's thread waits for a GPU.
    """

    def __init__(self, now: Copies, later: Copies) -> None:
        """now: already copied. later: what this object will copy."""
        self._later = later
        self._begun = {gpu: torch.cuda.current_stream(gpu).record_event() for gpu in now.gpus | later.gpus}
        self._done: dict[torch.device, torch.cuda.Event] = {}
        self._queued = threading.Event()

    def run(self) -> None:
        """Copy, and wait until all is copied."""
        try:
            with contextlib.ExitStack() as stack:
                streams = {gpu: torch.cuda.Stream(gpu) for gpu in self._begun}  # type: ignore[no-untyped-call]
                for gpu, stream in streams.items():
                    stream.wait_event(self._begun[gpu])
                    stack.enter_context(torch.cuda.stream(stream))
                self._later.run()
                self._done = {gpu: stream.record_event() for gpu, stream in streams.items()}
        finally:
            self._queued.set()
        for event in self._done.values():
            event.synchronize()

    def hold_back(self) -> bool:
        """In the training loop's thread: what is queued next on GPUs waits for the copies. False: no GPU is used."""
        if not self._begun:
            return False
        self._queued.wait()
        for gpu, event in self._done.items():
            torch.cuda.current_stream(gpu).wait_event(event)
        return True
