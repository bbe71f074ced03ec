"""Brings samples of parameters from a device into this process's memory. An ordinary boundary does not wait for them.

The device copies what was queued into pinned memory, and an event behind the copy tells when the copy is complete.
Meanwhile samples of further steps may be queued. Once all buffers are in use, the next step is noted without samples.
StepProof calls all of this in the thread that trains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ftlaunch_hooks.devices import device_port

_BUFFERS = 4


class DeviceEvent(Protocol):
    """What tells whether a device has done what was queued before; torch.Event is one."""

    def query(self) -> bool:
        """Return whether it has."""

    def synchronize(self) -> None:
        """Wait until it has."""


@dataclass(frozen=True)
class StagingBuffer:
    """Memory for the samples and the loss of one step, pinned if that is possible."""

    samples: Tensor
    """uint8, laid out as the samples in a ring's record"""
    loss: Tensor
    """one float64"""
    memory: memoryview
    """the memory of `samples`"""


class DeviceStaging:
    """The buffers of one rank, and the copies that are under way."""

    def __init__(self, sample_bytes: int, record: Callable[[], Sequence[DeviceEvent]]) -> None:
        """Make the buffers.

        Args:
            sample_bytes: bytes of the samples of one step.
            record: returns events behind what is queued, one for each device.
        """
        self._record = record
        self._free = [_make_buffer(sample_bytes) for _ in range(_BUFFERS)]
        self._sent: deque[tuple[int, StagingBuffer, bool, Sequence[DeviceEvent]]] = deque()
        """step, buffer, whether the buffer has a loss, and the events behind the copies"""

    @classmethod
    def of_devices(cls, devices: Sequence[torch.device], sample_bytes: int) -> DeviceStaging:
        """Make pinned buffers for parameters on devices other than the CPU, and for a loss on one of them."""
        return cls(sample_bytes, lambda: device_port.record_events(devices))

    def acquire_buffer(self) -> StagingBuffer | None:
        """Return a free buffer, or None while copies into all buffers are under way."""
        return self._free.pop() if self._free else None

    def release_buffer(self, buffer: StagingBuffer) -> None:
        """Free a buffer from `acquire_buffer` for which no copy was queued."""
        self._free.append(buffer)

    def send(self, step: int, buffer: StagingBuffer, *, has_loss: bool) -> None:
        """Record events behind the copies into `buffer`, which are all queued on the devices' current streams."""
        self._sent.append((step, buffer, has_loss, self._record()))

    def arrivals(self, *, must_wait: bool) -> Iterator[tuple[int, StagingBuffer, bool]]:
        """Yield the complete copies, the oldest first: step, buffer, and whether the buffer has a loss.

        A buffer is freed once the next copy is asked for.

        Args:
            must_wait: whether to wait for all copies that are under way.
        """
        while self._sent:
            step, buffer, has_loss, events = self._sent[0]
            if must_wait:
                for event in events:
                    event.synchronize()
            elif not all(event.query() for event in events):
                return
            self._sent.popleft()
            yield step, buffer, has_loss
            self._free.append(buffer)


def _make_buffer(sample_bytes: int) -> StagingBuffer:
    samples = device_port.allocate_pinned(sample_bytes).zero_()
    loss = device_port.allocate_pinned(torch.float64.itemsize).zero_().view(torch.float64)
    return StagingBuffer(samples, loss, samples.numpy().data)
