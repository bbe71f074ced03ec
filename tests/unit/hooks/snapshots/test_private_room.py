"""Whether private copies fit on a device: the script's own peak counts, and what the last copies have left does not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.devices.device_port import DeviceMemory
from ftlaunch_hooks.snapshots.private_room import PrivateRoom

DEVICE = torch.device("cuda", 0)


@dataclass
class Device:
    """A device of 100 bytes with an allocator that keeps what it once had."""

    allocated: int = 0
    reserved: int = 0
    peak: int = 0
    others: int = 0
    retries: int = 0
    room: PrivateRoom = field(default_factory=PrivateRoom)

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)

    def step(self, script: int) -> None:
        """The script needs so much at most, and has given back all but its state of 20."""
        self.allocate(script - self.allocated)
        self.allocated = 20

    def memory(self) -> DeviceMemory:
        return DeviceMemory(
            free=100 - self.others - self.reserved,
            total=100,
            allocated=self.allocated,
            reserved=self.reserved,
            peak_allocated=self.peak,
            peak_reserved=self.reserved,
            retries=self.retries,
        )

    def snapshot(self, script: int, size: int = 20) -> bool:
        """Take a snapshot, and let the script make a step beside the copy, where there is a private one."""
        if not self.room.has_room({DEVICE: size}):
            self.step(script)
            return False
        self.allocate(size)
        self.allocate(script - 20)
        self.allocated -= script - 20
        self.room.read_peaks({DEVICE: size})
        self.allocated -= size
        return True


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(device_port, "memory_of", lambda _: made.memory())
    monkeypatch.setattr(device_port, "can_work_beside_capture", lambda _: True)
    made.step(70)
    return made


def test_there_is_room_again_and_again(device: Device) -> None:
    """70 and 20 of 100: with what the first copy has left counted as taken, there was none for the second."""
    assert [device.snapshot(70) for _ in range(5)] == [False, True, True, True, True]


def test_the_script_s_peak_counts(device: Device) -> None:
    assert [device.snapshot(80) for _ in range(3)] == [False, False, False], "80, 20, and 5 to spare"


def test_a_script_that_needs_more_beside_a_copy_has_it(device: Device) -> None:
    """The script alone has come to 80, as the peak of 100 less the copy of 20 shows."""
    assert [device.snapshot(one) for one in (70, 70, 80, 70, 70)] == [False, True, True, False, False]


def test_others_on_the_device_count(device: Device) -> None:
    device.others = 6
    assert [device.snapshot(70) for _ in range(3)] == [False, False, False]


def test_a_peak_that_the_script_has_reset_counts(device: Device) -> None:
    assert device.snapshot(70) is False
    device.peak = device.allocated
    assert device.snapshot(70) is True


def test_after_memory_was_short_once_there_is_none(device: Device) -> None:
    assert [device.snapshot(60), device.snapshot(60)] == [False, True]
    device.retries = 1
    assert [device.snapshot(60), device.snapshot(60)] == [False, False]


def test_a_device_that_tells_nothing_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_port, "memory_of", lambda _: None)
    monkeypatch.setattr(device_port, "can_work_beside_capture", lambda _: True)
    room = PrivateRoom()
    assert [room.has_room({DEVICE: 1}) for _ in range(3)] == [False, False, False]


def test_buffers_may_fit_where_a_private_copy_does_not(device: Device) -> None:
    """Before the first step has shown the script's peak nothing fits, and nothing was asked about before that."""
    assert not device.room.has_room_for_buffers(1)
    found = []
    for _ in range(2):
        assert not device.snapshot(60, 50)
        found.append([device.room.has_room_for_buffers(size) for size in (1, 50)])
    assert found == [[False, False], [True, False]]
