"""What is on its way from a device is read once it has arrived, in order, and nothing waits for it unasked."""

from __future__ import annotations

import torch

from ftlaunch_hooks.observe.proof.device_staging import DeviceStaging


class FakeEvent:
    """An event of a device that this test drives: one more must have happened than the first."""

    made: list[FakeEvent] = []  # noqa: RUF012 - of all tests

    def __init__(self) -> None:
        self.has_happened = False
        self.made.append(self)

    def query(self) -> bool:
        return self.has_happened

    def synchronize(self) -> None:
        self.has_happened = True


def record() -> list[FakeEvent]:
    """Events of two devices, of which the first has happened at once."""
    FakeEvent().has_happened = True
    FakeEvent()
    return FakeEvent.made[-2:]


def send(staging: DeviceStaging, step: int) -> FakeEvent:
    buffer = staging.acquire_buffer()
    assert buffer is not None
    buffer.samples.fill_(step)
    buffer.loss.fill_(step / 2)
    staging.send(step, buffer, has_loss=True)
    return FakeEvent.made[-1]


def arrived(staging: DeviceStaging, *, must_wait: bool = False) -> list[tuple[int, bytes, float]]:
    found = staging.arrivals(must_wait=must_wait)
    return [(step, bytes(buffer.memory), buffer.loss.item()) for step, buffer, _ in found]


def test_samples_are_read_in_the_order_of_the_steps_once_they_are_there() -> None:
    staging = DeviceStaging(8, record)
    events = [send(staging, step) for step in (1, 2, 3)]
    events[1].has_happened = True
    assert arrived(staging) == []
    events[0].has_happened = True
    assert arrived(staging) == [(1, bytes([1]) * 8, 0.5), (2, bytes([2]) * 8, 1.0)]
    assert arrived(staging, must_wait=True) == [(3, bytes([3]) * 8, 1.5)]


def test_where_all_buffers_are_on_their_way_there_is_none_until_one_has_arrived() -> None:
    staging = DeviceStaging(8, record)
    events = [send(staging, step) for step in range(4)]
    assert staging.acquire_buffer() is None
    events[0].has_happened = True
    assert len(arrived(staging)) == 1
    buffer = staging.acquire_buffer()
    assert buffer is not None
    staging.release_buffer(buffer)
    assert staging.acquire_buffer() is buffer
    assert buffer.samples.dtype is torch.uint8
