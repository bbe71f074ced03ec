"""How tensors lie in memory: their strides, and which of them share memory.

A resumed run computes the same only where its tensors lie as they lay: two tensors that share memory change together,
and a kernel that reads a transposed matrix sums in another order. Values alone do not tell of that, so what differs
from the ordinary (a contiguous tensor in memory of its own) is saved beside them.

Memory is described in regions: a storage, or several that overlap. The saved form is JSON:

    strides  key -> strides, of a tensor that is not contiguous
    regions  a list of what is known of each: "bytes", its size; "members", key -> offset in it in bytes; "overlap",
             whether two of its members do; "tied", whether two do that a restore fills in place
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ftlaunch_hooks.tensors.json_codec import Json

NAME = "tensor_layouts"
STRIDES, REGIONS = "strides", "regions"
BYTES, MEMBERS, OVERLAP, TIED = "bytes", "members", "overlap", "tied"


class Restored(enum.Enum):
    """What becomes of a tensor in a restore."""

    IN_PLACE = enum.auto()
    """the tensor that is there is filled"""
    ANEW = enum.auto()
    """an object is given a new tensor, by its load_state_dict()"""
    APART = enum.auto()
    """neither: its memory is nobody's concern"""


class Placed(NamedTuple):
    """A tensor that is saved under a key."""

    key: str
    tensor: Tensor  # plain and strided
    restored: Restored


@dataclass
class _Region:
    """Memory from `begin` to `end`, and what lies in it."""

    begin: int
    end: int
    placed: list[Placed] = field(default_factory=list)

    def offsets(self) -> dict[str, int]:
        return {one.key: one.tensor.data_ptr() - self.begin for one in self.placed}

    @property
    def is_tied(self) -> bool:
        """Whether two tensors that are restored in place, and not one under two names, overlap."""
        fixed = {id(one.tensor): one.tensor for one in self.placed if one.restored is Restored.IN_PLACE}
        return _overlap(fixed.values())

    @property
    def has_overlap(self) -> bool:
        """Whether two of the tensors overlap."""
        return _overlap(one.tensor for one in self.placed)

    @property
    def is_ordinary(self) -> bool:
        """Whether tensors that are made one by one, or filled where they are, lie in the same way."""
        anew = [one.tensor for one in self.placed if one.restored is Restored.ANEW]
        if not anew:
            return not self.is_tied
        return len(self.placed) == 1 and extent(anew[0]) == self.end - self.begin


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in values, that a new tensor of a shape has."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def extent(tensor: Tensor) -> int:
    """Return the bytes from a tensor's first value to the end of its last one."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two values of a tensor may lie at the same place, as in one that was expanded."""
    reached = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride <= reached:
            return True
        reached += stride * (size - 1)
    return False


def _overlap(tensors: Iterable[Tensor]) -> bool:
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + extent(tensor)) for tensor in tensors)
    return any(later < end for (_, end), (later, _) in pairwise(spans))


def describe(placed: Iterable[Placed]) -> Json:
    """Describe what is out of the ordinary in how tensors lie in memory."""
    known = [one for one in placed if one.restored is not Restored.APART and one.tensor.numel()]
    strides = {
        one.key: list(one.tensor.stride())
        for one in known
        if one.tensor.stride() != contiguous_strides(one.tensor.shape)
    }
    regions = [
        {
            BYTES: region.end - region.begin,
            MEMBERS: region.offsets(),
            OVERLAP: region.has_overlap,
            TIED: region.is_tied,
        }
        for region in find_regions(known)
        if not region.is_ordinary
    ]
    return {STRIDES: strides, REGIONS: regions}


def find_regions(placed: Iterable[Placed]) -> list[_Region]:
    """Sort tensors by the memory that they lie in."""
    spans = []
    for number, one in enumerate(placed):
        storage = one.tensor.untyped_storage()
        begin = storage.data_ptr()
        spans.append((str(one.tensor.device), begin, begin + storage.nbytes(), number, one))
    regions: list[_Region] = []
    device_before = None
    for device, begin, end, _, one in sorted(spans, key=lambda span: span[:4]):
        if device != device_before or begin >= regions[-1].end:
            regions.append(_Region(begin, end))
        device_before = device
        regions[-1].end = max(regions[-1].end, end)
        regions[-1].placed.append(one)
    return regions


class SavedLayout:
    """How tensors lay when they were saved, and memory for them that is laid out alike."""

    def __init__(self, tree: Json, live: Sequence[Placed]) -> None:
        """tree: what `describe` has said, or None where the state is of an earlier version. live: as they lie now."""
        self.is_known = tree is not None
        self._strides: Mapping[str, list[int]] = tree[STRIDES] if self.is_known else {}
        self._regions: list[Json] = tree[REGIONS] if self.is_known else []
        self._number = {key: number for number, one in enumerate(self._regions) for key in one[MEMBERS]}
        self._live = {one.key: one for one in live if one.restored is not Restored.APART and one.tensor.numel()}
        self._bases: dict[int, Tensor] = {}

    def strides(self, key: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the strides that a tensor had."""
        return tuple(self._strides[key]) if key in self._strides else contiguous_strides(shape)

    def allocate(self, key: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
        """Return memory for a tensor that is made anew: its values are what happens to be there."""
        strides = self.strides(key, shape)
        if key in self._number:
            number = self._number[key]
            region = self._regions[number]
            if (found := self._in_live_memory(region, key, shape, strides, dtype)) is not None:
                return found
            if region[OVERLAP]:
                return self._in_new_memory(number, key, shape, strides, dtype, device)
        return _strided(shape, strides, dtype, device)

    def _in_live_memory(
        self, region: Json, key: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> Tensor | None:
        """In the region as it lies in this process already, where it does: filled, it stays what others refer to."""
        members: Mapping[str, int] = region[MEMBERS]
        for name, offset in members.items():
            anchor = self._live.get(name)
            if anchor is not None and anchor.restored is Restored.IN_PLACE:
                is_same = _is_at(anchor.tensor, offset, region[BYTES])
                distance = members[key] - offset
                return _view_beside(anchor.tensor, distance, shape, strides, dtype, anywhere=is_same)
        live = self._live.get(key)
        if live is None or live.tensor.is_inference():
            return None
        tensor, storage = live.tensor, live.tensor.untyped_storage()
        is_alike = (
            (tensor.dtype, tuple(tensor.shape), tensor.stride()) == (dtype, shape, strides)
            and _is_at(tensor, members[key], region[BYTES])
            and all(self._is_beside(name, offset, storage) for name, offset in members.items())
        )
        return tensor.detach() if is_alike else None

    def _is_beside(self, key: str, offset: int, storage: torch.UntypedStorage) -> bool:
        """Whether a tensor lies in a storage now, at an offset in bytes."""
        live = self._live.get(key)
        return live is not None and live.tensor.data_ptr() - storage.data_ptr() == offset

    def _in_new_memory(
        self, number: int, key: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: str
    ) -> Tensor:
        region = self._regions[number]
        if number not in self._bases:
            self._bases[number] = torch.empty(region[BYTES], dtype=torch.uint8, device=device)
        return _view(self._bases[number], region[MEMBERS][key], shape, strides, dtype)

    # --- tensors that are filled where they are -----------------------------------------------------------------

    def arrange(self) -> None:
        """Give the tensors that are to be filled in place the strides that they had, and tie those that were tied.

        Their values are lost where their memory is another one. What lies right stays where it is.
        """
        if not self.is_known:
            return
        fixed = [one for one in self._live.values() if one.restored is Restored.IN_PLACE]
        before = [region[MEMBERS] for region in self._regions if region[TIED]]
        wanted = [{key: at for key, at in members.items() if self._is_fixed(key)} for members in before]
        now = [region.offsets() for region in find_regions(fixed) if region.is_tied]
        done = set[str]()
        for members in now:
            if _relative(members) not in map(_relative, wanted):
                done |= self._untie(members)
        for members in wanted:
            if _relative(members) not in map(_relative, now):
                self._tie(members)
                done |= members.keys()
        for one in fixed:
            tensor, strides = one.tensor, self.strides(one.key, one.tensor.shape)
            if one.key not in done and tensor.stride() != strides and len(strides) == tensor.dim():
                tensor.data = _strided(tuple(tensor.shape), strides, tensor.dtype, str(tensor.device))

    def _is_fixed(self, key: str) -> bool:
        return key in self._live and self._live[key].restored is Restored.IN_PLACE

    def _untie(self, members: Iterable[str]) -> set[str]:
        for key in members:
            tensor = self._live[key].tensor
            strides = self.strides(key, tensor.shape)
            tensor.data = _strided(tuple(tensor.shape), strides, tensor.dtype, str(tensor.device))
        return set(members)

    def _tie(self, members: Mapping[str, int]) -> None:
        """Put tensors into one new piece of memory, at their offsets."""
        spans = [
            at + _span(self.strides(key, self._live[key].tensor.shape), self._live[key].tensor)
            for key, at in members.items()
        ]
        first = self._live[next(iter(members))].tensor
        base = torch.empty(max(spans), dtype=torch.uint8, device=first.device)
        for key, at in members.items():
            tensor = self._live[key].tensor
            shape = tuple(tensor.shape)
            tensor.data = _view(base, at, shape, self.strides(key, shape), tensor.dtype)


def _relative(members: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    """Offsets in a region, counted from its first member's."""
    first = min(members.values(), default=0)
    return frozenset((key, at - first) for key, at in members.items())


def _span(strides: Sequence[int], tensor: Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    return (last + 1) * tensor.element_size()


def _strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _view(
    base: Tensor, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """A view of the memory of `base`, one-dimensional and of bytes, at an offset in bytes."""
    size = dtype.itemsize
    last = sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
    stretch = base[offset : offset + (last + 1) * size].view(dtype)
    return stretch.as_strided(shape, strides, stretch.storage_offset())


def _is_at(tensor: Tensor, offset: int, size: int) -> bool:
    """Whether a tensor lies in a storage of `size` bytes, at an offset in bytes."""
    storage = tensor.untyped_storage()
    return storage.nbytes() == size and tensor.data_ptr() - storage.data_ptr() == offset


def _view_beside(
    anchor: Tensor,
    distance: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    *,
    anywhere: bool,
) -> Tensor | None:
    """Return a tensor in the storage of `anchor`, `distance` bytes from where the anchor begins.

    None where the storage does not reach as far. anywhere: the tensor may lie beside the anchor, and not only within.
    """
    size = dtype.itemsize
    last = sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
    end = distance + (last + 1) * size
    if not anywhere and not 0 <= distance < end <= extent(anchor):
        return None
    storage = anchor.untyped_storage()
    begin = anchor.data_ptr() - storage.data_ptr()
    if begin + distance < 0 or (begin + distance) % size or begin + end > storage.nbytes():
        return None
    everything = torch.empty(0, dtype=torch.uint8, device=anchor.device).set_(storage)
    return _view(everything, begin + distance, shape, strides, dtype)


def fill_overlapping(target: Tensor, values: Tensor) -> None:
    """Write values into a tensor that overlaps itself; those at one place are equal."""
    size = extent(target) // target.element_size()
    stretch = target.as_strided((size,), (1,), target.storage_offset())
    places = torch.arange(size, device=target.device).as_strided(target.shape, target.stride())
    stretch[places.reshape(-1)] = values.reshape(-1)
