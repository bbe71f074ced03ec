"""Samples on their way from a device into this process's memory: nothing waits for them at an ordinary boundary.

The device copies what was queued into pinned memory, and an event behind the copy tells when it is there. Until then
the samples of some further steps may be on their way; where all buffers are, the next step goes without samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_BUFFERS = 4


@dataclass(frozen=True)
class StagingBuffer:
    """A stretch of pinned memory.

    samples: bytes, as they lie in a ring's record. loss: one double.
    """

    samples: Tensor
    loss: Tensor
    memory: memoryview
    """of `samples`"""


class DeviceStaging:
    """The buffers of one rank."""

    def __init__(self, sample_bytes: int, make_event: Callable[[], Any], *, is_pinned: bool) -> None:
        """Make the buffers.

        Args:
            sample_bytes: of one step.
            make_event: makes an event of the device, with record(), query() and synchronize() as torch.cuda.Event has.
            is_pinned: whether the buffers are pinned, without which a copy from a device waits.
        """
        self._make_event = make_event
        self._free = [_make_buffer(sample_bytes, is_pinned=is_pinned) for _ in range(_BUFFERS)]
        self._sent: deque[tuple[int, StagingBuffer, bool, Any]] = deque()

    @classmethod
    def of_device(cls, device: torch.device, sample_bytes: int) -> DeviceStaging:
        """Return buffers for parameters on a device other than the CPU."""
        module: Any = torch.get_device_module(device)
        return cls(sample_bytes, module.Event, is_pinned=True)

    def take_buffer(self) -> StagingBuffer | None:
        """Return a buffer that nothing is on its way to; None where there is none."""
        return self._free.pop() if self._free else None

    def give_back(self, buffer: StagingBuffer) -> None:
        """Nothing was queued for a buffer that was taken."""
        self._free.append(buffer)

    def send(self, step: int, buffer: StagingBuffer, *, has_loss: bool) -> None:
        """All copies of a step into `buffer` are queued on the current stream."""
        event = self._make_event()
        event.record()
        self._sent.append((step, buffer, has_loss, event))

    def arrivals(self, *, must_wait: bool) -> Iterator[tuple[int, StagingBuffer, bool]]:
        """Yield what has arrived, the oldest first: step, buffer, and whether the buffer has a loss.

        A buffer is used again once the next one is asked for. must_wait: wait for all that is on its way.
        """
        while self._sent:
            step, buffer, has_loss, event = self._sent[0]
            if must_wait:
                event.synchronize()
            elif not event.query():
                return
            self._sent.popleft()
            yield step, buffer, has_loss
            self._free.append(buffer)


def _make_buffer(sample_bytes: int, *, is_pinned: bool) -> StagingBuffer:
    samples = torch.zeros(sample_bytes, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
    loss = torch.zeros(1, dtype=torch.float64, device="cpu", pin_memory=is_pinned)
    return StagingBuffer(samples, loss, samples.numpy().data)
