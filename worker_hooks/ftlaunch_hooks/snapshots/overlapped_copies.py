"""Copies tensors from devices to a slot while training goes on, where a device has no room for a private copy.

At the boundary the device computes a fingerprint of each piece of the tensors. After that, a thread brings piece by
piece into a small buffer on the device, and from there to the slot. The fingerprint of what is in the buffer is
compared with that of the boundary: so it is known of the very bytes that were copied whether they are those of the
boundary, even if the script has changed a tensor in between and has changed it back. If one piece differs, the snapshot
must be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.snapshots.copies import Copies
from ftlaunch_hooks.state.collector import TensorItem
from ftlaunch_hooks.tensors.device_fingerprint import fingerprint, place_factors
from ftlaunch_hooks.tensors.memory_layout import is_memory_of_values

PIECE_WORDS = 4 << 20
"""32-bit words of a piece"""
BYTES_ON_DEVICE = PIECE_WORDS * (4 + 8 + 8)
"""bytes that the buffers take on a device: a piece, the factors of the fingerprint, and the products of both"""
LEAST_BYTES = 1 << 20
"""of a tensor: smaller ones are copied at the boundary in one call"""


@dataclass(frozen=True)
class Pair:
    """A tensor on a device, and its place in a slot."""

    key: str
    source: Tensor
    target: Tensor
    """of this process's memory; of the source's shape and dtype"""


class DeviceBuffers:
    """What a device needs for such copies. Made once, as each allocation may be refused.

    All of it is used on this process's own stream only.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocate. Raises RuntimeError where the device has no memory."""
        self.stream = device_port.own_stream(device)
        self.piece = torch.empty(PIECE_WORDS, dtype=torch.int32, device=device)
        self._factors = place_factors(PIECE_WORDS, device)
        self._products = torch.empty(PIECE_WORDS, dtype=torch.int64, device=device)
        device_port.order_after_script(device)  # new memory may still be filled, and the factors be computed

    def fingerprint(self, words: Tensor) -> Tensor:
        """Return the fingerprint of at most PIECE_WORDS words of int32, as int64 on the device, on the own stream."""
        return fingerprint(words, self._factors, self._products)


class OverlappedCopies:
    """Copies of one snapshot, between its boundary and the next step of an optimizer."""

    def __init__(self, pairs: Iterable[Pair], buffers: dict[torch.device, DeviceBuffers]) -> None:
        """Compute the fingerprints, and wait for them. Call this at the boundary, after `wait_for_devices`.

        Args:
            pairs: what is to be copied; each source is contiguous, and a whole number of words.
            buffers: of all devices of the sources.
        """
        self._pieces = [piece for pair in pairs for piece in _cut(pair)]
        self._buffers = buffers
        found = [self._fingerprint(piece.source) for piece in self._pieces]
        self._synchronize()
        self.fingerprints = _to_host(found)
        """those of the boundary, by piece"""

    @property
    def devices(self) -> Sequence[torch.device]:
        """Return the devices of the sources."""
        return list({piece.source.device: None for piece in self._pieces})

    def run(self) -> set[str]:
        """Copy all. Call this in a thread beside the script's, once `prepare_thread` was called in it.

        Returns:
            The keys of tensors that were changed after the boundary: what was copied of them is not theirs of then.
        """
        found = []
        for piece in self._pieces:
            buffers = self._buffers[piece.source.device]
            copied = buffers.piece[: piece.source.numel()]
            with buffers.stream, torch.no_grad():
                copied.copy_(piece.source)
                found.append(buffers.fingerprint(copied))
                piece.target.copy_(copied, non_blocking=True)
        self._synchronize()
        copied_of = zip(self._pieces, _to_host(found), self.fingerprints, strict=True)
        return {piece.key for piece, now, then in copied_of if now != then}

    def _fingerprint(self, words: Tensor) -> Tensor:
        buffers = self._buffers[words.device]
        with buffers.stream, torch.no_grad():
            return buffers.fingerprint(words)

    def _synchronize(self) -> None:
        for device in self.devices:
            self._buffers[device].stream.synchronize()


class Overlapping:
    """Chooses what is copied while training goes on, and keeps the buffers for that."""

    def __init__(self) -> None:
        """Allocate nothing yet."""
        self._buffers: dict[torch.device, DeviceBuffers] = {}
        self._is_refused = False
        self._changing: set[str] = set()

    def begin(self, on_devices: Sequence[tuple[TensorItem, Tensor]]) -> OverlappedCopies | None:
        """Copy what may change before an optimizer's next step, and return copies of the rest that are still to be run.

        Call this at the boundary, after `wait_for_devices`.

        Args:
            on_devices: all tensors on devices, and their places in a slot.

        Returns:
            None where nothing was copied: there is nothing that an optimizer's step alone changes, or the device has no
            memory for the buffers.
        """
        chosen = [self._can_overlap(item) for item, _ in on_devices]
        if self._is_refused or not any(chosen):
            return None
        try:
            for device in {item.tensor.device for item, _ in on_devices} - self._buffers.keys():
                self._buffers[device] = DeviceBuffers(device)
        except RuntimeError:  # not all backends raise torch.OutOfMemoryError. What is broken raises again at once.
            self._is_refused = True
            self._buffers = {}
            return None
        both = list(zip(on_devices, chosen, strict=True))
        Copies((item.tensor, place) for (item, place), is_later in both if not is_later).run()
        later = [Pair(item.key, item.tensor, place) for (item, place), is_later in both if is_later]
        return OverlappedCopies(later, self._buffers)

    def avoid(self, keys: Iterable[str]) -> None:
        """Copy these tensors at the boundary from now on: something else than an optimizer's step changes them, too."""
        self._changing.update(keys)

    def _can_overlap(self, item: TensorItem) -> bool:
        tensor = item.tensor
        is_words = not tensor.nbytes % 4 and not tensor.storage_offset() * tensor.element_size() % 4
        is_fit = is_memory_of_values(tensor) and tensor.nbytes >= LEAST_BYTES and is_words
        return is_fit and item.settled and item.key not in self._changing


def _cut(pair: Pair) -> list[Pair]:
    """Return the pieces of a pair, as words."""
    source, target = pair.source.view(-1).view(torch.int32), pair.target.view(-1).view(torch.int32)
    begins = range(0, source.numel(), PIECE_WORDS)
    return [Pair(pair.key, source[at : at + PIECE_WORDS], target[at : at + PIECE_WORDS]) for at in begins]


def _to_host(fingerprints: Sequence[Tensor]) -> list[int]:
    """Return fingerprints that have been computed, by one copy from each device."""
    by_device: dict[torch.device, list[int]] = {}
    for number, found_one in enumerate(fingerprints):
        by_device.setdefault(found_one.device, []).append(number)
    found: dict[int, int] = {}
    for numbers in by_device.values():
        values = torch.stack([fingerprints[number] for number in numbers]).tolist()
        found.update(zip(numbers, values, strict=True))
    return [found[number] for number in range(len(fingerprints))]
