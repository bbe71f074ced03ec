"""Copies a rank's tensors into a snapshot slot. What the script may change is read at the step boundary only.

Between two boundaries anything may change a tensor, and nothing tells of it for certain: weights are swapped for their
average, averages are updated in a forward, `.data` is written to, a CUDA graph is replayed. A copy beside the training
would be torn by it, inside single tensors. So the bytes leave the script's tensors while the training loop waits at the
boundary; docs/decisions/052 has the alternatives. Tensors on a GPU are copied on that GPU first, where it has room:
then only the private copy is brought to the slot beside the training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor

_SPARE = 0.05  # of a GPU's memory: what private copies leave free


class Copies:
    """Tensors, and the tensor that each is copied to."""

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]] = ()) -> None:
        """pairs: (from, to), of one shape and dtype."""
        chosen = list(pairs)
        self.sources = [source for source, _ in chosen]
        self.targets = [target for _, target in chosen]
        self.gpus = {source.device for source in self.sources if source.device.type == "cuda"}

    def run(self) -> None:
        """Copy all; returns when all bytes are there.

        What is queued on a GPU must have ended before, see `wait_for_gpus`.
        """
        if not self.sources:
            return
        streams = [torch.cuda.Stream(gpu) for gpu in self.gpus]  # type: ignore[no-untyped-call]
        with contextlib.ExitStack() as stack:
            for stream in streams:
                stack.enter_context(torch.cuda.stream(stream))
            torch._foreach_copy_(self.targets, self.sources, bool(streams))  # in one call: the GIL is released once
        for stream in streams:
            stream.synchronize()

    def wait_for_gpus(self) -> None:
        """Wait until the GPUs have done all that is queued, on whatever stream: also what the script forked off."""
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)

    def privately(self) -> Copies | None:
        """Copies to the same targets from sources that no other code knows: the script's tensors may change now.

        The private sources lie on the same devices. None where a GPU has no room for them. As for `run`, what is
        queued must have ended.
        """
        if not all(map(self._fits, self.gpus)):
            return None
        try:
            private = Copies((source, torch.empty_like(source)) for source in self.sources)
        except torch.OutOfMemoryError:
            return None
        private.run()
        return Copies(zip(private.targets, self.targets, strict=True))

    def _fits(self, gpu: torch.device) -> bool:
        """Whether a GPU had room for private copies even when the script needed most."""
        free, total = torch.cuda.mem_get_info(gpu)
        to_come = torch.cuda.max_memory_reserved(gpu) - torch.cuda.memory_reserved(gpu)
        needed = sum(source.nbytes for source in self.sources if source.device == gpu)
        return needed + to_come + _SPARE * total < free


def divide(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Copies, Copies]:
    """The copies from this process's memory, and those from GPUs."""
    chosen = list(pairs)
    on_gpus = [pair for pair in chosen if pair[0].device.type == "cuda"]
    return Copies(pair for pair in chosen if pair[0].device.type != "cuda"), Copies(on_gpus)
