"""Copies a rank's tensors into a snapshot slot. What the script may change is read at the step boundary only.

Between two boundaries anything may change a tensor, and nothing reliably shows it: weights are swapped for their
average, averages are updated in a forward, `.data` is written to, a CUDA graph is replayed. A copy made while training
runs could be torn, inside single tensors. So the bytes leave the script's tensors while the training loop waits at the
boundary; docs/decisions/052 has the alternatives. Tensors on a device are first copied on that device, where it has
room: then only the private copy is brought to the slot while training goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor

from ftlaunch_hooks.devices import device_port


class Copies:
    """Pairs of tensors: each source is to be copied to its target."""

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]] = ()) -> None:
        """Take pairs of (source, target), each of one shape and dtype."""
        chosen = list(pairs)
        self.sources = [source for source, _ in chosen]
        self.targets = [target for _, target in chosen]
        self._bytes: dict[torch.device, int] = {}
        for source in self.sources:
            if device_port.is_on_device(source):
                self._bytes[source.device] = self._bytes.get(source.device, 0) + source.nbytes

    @property
    def bytes_on_devices(self) -> dict[torch.device, int]:
        """Return the bytes of the sources on each device."""
        return self._bytes

    def run(self) -> None:
        """Copy all, and return when all bytes are there.

        What is queued on a device must have ended before, as `device_port.wait_for_devices` ensures.
        """
        if not self.sources:
            return
        streams = [device_port.own_stream(device) for device in self._bytes]
        with contextlib.ExitStack() as stack:
            for stream in streams:
                stack.enter_context(stream)
            torch._foreach_copy_(self.targets, self.sources, bool(streams))  # in one call: the GIL is released once
        for stream in streams:
            stream.synchronize()

    def copy_on_devices(self) -> Copies | None:
        """Copy each source on its own device; return copies from there to the same targets.

        No other code knows the private sources, so the script's tensors may change afterwards. What is queued must have
        ended before, as for `run`.

        Returns:
            None where a device has no memory for the copies.
        """
        try:
            private = Copies((source, torch.empty_like(source)) for source in self.sources)
        except RuntimeError:  # not all backends raise torch.OutOfMemoryError. What is broken raises again at once.
            return None
        for device in self._bytes:
            # With torch.use_deterministic_algorithms(), new memory is filled, by a kernel on the script's stream: it
            # must not come after the copy.
            device_port.order_after_script(device)
        private.run()
        return Copies(zip(private.targets, self.targets, strict=True))

    def release(self) -> None:
        """Drop all tensors, so that the memory of private ones is free."""
        self.sources = []
        self.targets = []
        self._bytes = {}


def divide(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Copies, Copies]:
    """Divide pairs of (source, target) into copies from this process's memory, and copies from devices."""
    chosen = list(pairs)
    on_devices = [pair for pair in chosen if device_port.is_on_device(pair[0])]
    on_host = [pair for pair in chosen if not device_port.is_on_device(pair[0])]
    return Copies(on_host), Copies(on_devices)
