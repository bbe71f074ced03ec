"""Decides whether a device has room for private copies of the state, besides the most that the script itself needs.

A private copy lives while the script makes its next steps. If it took memory that the script needs, the script would
fail, out of memory. So the script's own peak counts as taken; what torch's allocator has kept of the last private
copies counts as free, because the next ones get it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.devices.device_port import DeviceMemory

_SPARE = 0.05
"""share of a device's memory that private copies leave free"""


@dataclass
class _ScriptPeak:
    """The most bytes that the script has had allocated on one device, without private copies."""

    retries: int
    script: int
    seen: int
    """the allocator's peak when it was last read, in bytes"""

    def read(self, memory: DeviceMemory, private: int) -> None:
        """Take account of a new peak of the allocator, also if the script has reset the peak since.

        private: bytes of private copies that existed all the time since the last reading.
        """
        if memory.peak_allocated != self.seen:
            self.script = max(self.script, memory.peak_allocated - private)
        self.seen = memory.peak_allocated


class PrivateRoom:
    """Decides at each snapshot whether private copies fit."""

    def __init__(self) -> None:
        self._peaks: dict[torch.device, _ScriptPeak] = {}
        self._rooms: dict[torch.device, float] = {}  # bytes, when `has_room` was asked last

    def has_room(self, needed: dict[torch.device, int]) -> bool:
        """Whether private copies of `needed` bytes fit on each device. Ask at a boundary, while there are none.

        The first answer for a device is no: before a whole step was seen, the script's peak is not known. Once the
        allocator had to give back memory to serve the script, the answer is no for good.
        """
        self._rooms = {device: self._room_on(device) for device in needed}
        return all(self._rooms[device] > size for device, size in needed.items())

    def has_room_for_buffers(self, size: int) -> bool:
        """Whether buffers of `size` bytes fit on each device that `has_room` was asked about at this boundary."""
        return bool(self._rooms) and all(room > size for room in self._rooms.values())

    def read_peaks(self, private: dict[torch.device, int]) -> None:
        """Read the allocators' peaks just before private copies are freed. private: their bytes on each device."""
        for device, size in private.items():
            memory = device_port.memory_of(device)
            if memory is not None and device in self._peaks:
                self._peaks[device].read(memory, size)

    def _room_on(self, device: torch.device) -> float:
        """Return how many bytes of a device the script leaves to others; 0 where that is not known."""
        memory = device_port.memory_of(device) if device_port.can_work_beside_capture(device) else None
        if memory is None:
            return 0
        peak = self._peaks.get(device)
        if peak is None:
            self._peaks[device] = _ScriptPeak(
                retries=memory.retries, script=memory.peak_allocated, seen=memory.peak_allocated
            )
            return 0
        peak.read(memory, private=0)
        if memory.retries > peak.retries:
            return 0
        fragmented = max(memory.peak_reserved - max(memory.peak_allocated, peak.script), 0)
        return memory.free + memory.reserved - peak.script - fragmented - _SPARE * memory.total
