"""Whether a device has room for private copies of the state, besides the most that the script needs by itself.

A private copy lives while the script goes on with its next steps. Where it takes memory that the script needs, the
script is what ends, out of memory. So the script's own peak counts, and what torch's allocator has kept of the last
private copies counts as free: it is there for the next ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.devices.device_port import DeviceMemory

_SPARE = 0.05
"""of a device's memory: what private copies leave free"""


@dataclass
class _ScriptPeak:
    """The most that the script has had allocated on one device, without private copies, in bytes."""

    retries: int
    script: int
    seen: int
    """the allocator's peak when it was last read"""

    def read(self, memory: DeviceMemory, private: int) -> None:
        """Count a new peak of the allocator's, also one since the script has reset it.

        private: bytes of private copies, throughout since the last reading.
        """
        if memory.peak_allocated != self.seen:
            self.script = max(self.script, memory.peak_allocated - private)
        self.seen = memory.peak_allocated


class PrivateRoom:
    """Decides at each snapshot whether private copies fit."""

    def __init__(self) -> None:
        self._peaks: dict[torch.device, _ScriptPeak] = {}

    def has_room(self, needed: dict[torch.device, int]) -> bool:
        """Whether private copies fit on each device. To be asked at a boundary, while there are none.

        Args:
            needed: bytes of the copies on each device.

        The first answer for a device is no: until a whole step was seen, the script's peak is not known. From the
        moment on that the allocator had to give back memory to serve the script, it is no for good.
        """
        rooms = [self._has_room(device, size) for device, size in needed.items()]  # all: each peak is to be read
        return all(rooms)

    def read_peaks(self, private: dict[torch.device, int]) -> None:
        """Read the allocators' peaks as private copies are about to be freed. private: their bytes on each device."""
        for device, size in private.items():
            memory = device_port.memory_of(device)
            if memory is not None and device in self._peaks:
                self._peaks[device].read(memory, size)

    def _has_room(self, device: torch.device, needed: int) -> bool:
        memory = device_port.memory_of(device) if device_port.can_work_beside_capture(device) else None
        if memory is None:
            return False
        peak = self._peaks.get(device)
        if peak is None:
            self._peaks[device] = _ScriptPeak(memory.retries, memory.peak_allocated, memory.peak_allocated)
            return False
        peak.read(memory, private=0)
        if memory.retries > peak.retries:
            return False
        scattered = max(memory.peak_reserved - max(memory.peak_allocated, peak.script), 0)
        return needed + peak.script + scattered + _SPARE * memory.total < memory.free + memory.reserved
