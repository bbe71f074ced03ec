"""How tensors lie in memory: their strides, and which of them share memory.

A resumed run computes the same only if its tensors lie in memory as before: two tensors that share memory change
together, and a kernel that reads a transposed matrix sums in another order. Values alone do not show that, so anything
but a contiguous tensor in memory of its own is saved beside the values.

Memory is described in regions: a storage, or several that overlap. The saved form is JSON:

    strides  key -> strides, of each tensor that is not contiguous
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
STRIDES = "strides"
REGIONS = "regions"
BYTES = "bytes"
MEMBERS = "members"
OVERLAP = "overlap"
TIED = "tied"


class Restored(enum.Enum):
    """What happens to a tensor in a restore."""

    IN_PLACE = enum.auto()
    """the existing tensor is filled"""
    REPLACED = enum.auto()
    """an object gets a new tensor, through its load_state_dict()"""
    APART = enum.auto()
    """neither of the two: where the tensor lies does not matter"""


class Placed(NamedTuple):
    """A tensor that is saved under a key, where it lies now."""

    key: str
    tensor: Tensor  # plain and strided
    restored: Restored


@dataclass
class _Region:
    """A piece of memory from address `begin` to `end`, and the tensors in it."""

    begin: int
    end: int
    placed: list[Placed] = field(default_factory=list)

    def offsets(self) -> dict[str, int]:
        """Return the offset in bytes of each tensor in the region, by key."""
        return {member.key: member.tensor.data_ptr() - self.begin for member in self.placed}

    @property
    def is_tied(self) -> bool:
        """Whether two different tensors that are restored in place overlap."""
        in_place = [member.tensor for member in self.placed if member.restored is Restored.IN_PLACE]
        by_id = {id(tensor): tensor for tensor in in_place}  # a tensor may have two keys
        return _overlap(by_id.values())

    @property
    def has_overlap(self) -> bool:
        """Whether two of the tensors overlap."""
        return _overlap(member.tensor for member in self.placed)

    @property
    def is_ordinary(self) -> bool:
        """Whether tensors that are allocated one by one, or filled in place, would lie in the same way."""
        replaced = [member.tensor for member in self.placed if member.restored is Restored.REPLACED]
        if not replaced:
            return not self.is_tied
        return len(self.placed) == 1 and extent(replaced[0]) == self.end - self.begin


class _Form(NamedTuple):
    """What a tensor needs besides memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """in values"""
    dtype: torch.dtype

    @property
    def span(self) -> int:
        """Return the bytes from the first value to the end of the last one."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in values, of a new tensor with this shape."""
    strides = []
    stride = 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def is_memory_of_values(tensor: Tensor) -> bool:
    """Whether a tensor's memory is its values in order: not with gaps, nor if reading it conjugates or negates them."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def extent(tensor: Tensor) -> int:
    """Return the bytes from a tensor's first value to the end of its last one."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two values of a tensor may lie at the same place, as in an expanded tensor. strides: in values."""
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
    """Describe everything unusual in how tensors lie in memory, in the saved form."""
    relevant = [member for member in placed if member.restored is not Restored.APART and member.tensor.numel()]
    strides = {
        member.key: list(member.tensor.stride())
        for member in relevant
        if member.tensor.stride() != contiguous_strides(member.tensor.shape)
    }
    regions = [
        {
            BYTES: region.end - region.begin,
            MEMBERS: region.offsets(),
            OVERLAP: region.has_overlap,
            TIED: region.is_tied,
        }
        for region in find_regions(relevant)
        if not region.is_ordinary
    ]
    return {STRIDES: strides, REGIONS: regions}


def find_regions(placed: Iterable[Placed]) -> list[_Region]:
    """Sort tensors into regions of memory."""
    spans = []
    for number, member in enumerate(placed):
        storage = member.tensor.untyped_storage()
        begin = storage.data_ptr()
        spans.append((str(member.tensor.device), begin, begin + storage.nbytes(), number, member))
    regions: list[_Region] = []
    device_before = None
    for device, begin, end, _, member in sorted(spans, key=lambda span: span[:4]):
        if device != device_before or begin >= regions[-1].end:
            regions.append(_Region(begin, end))
        device_before = device
        regions[-1].end = max(regions[-1].end, end)
        regions[-1].placed.append(member)
    return regions


class SavedLayout:
    """How tensors lay when they were saved; allocates memory that is laid out in the same way."""

    def __init__(self, tree: Json, live: Sequence[Placed]) -> None:
        """Compare the saved layout with the live tensors.

        Args:
            tree: the result of `describe`, or None if the state was saved by an earlier version.
            live: the tensors as they lie now.
        """
        self.is_known = tree is not None
        self._strides: Mapping[str, list[int]] = tree[STRIDES] if self.is_known else {}
        self._regions: list[Json] = tree[REGIONS] if self.is_known else []
        self._number = {key: number for number, region in enumerate(self._regions) for key in region[MEMBERS]}
        self._live = {
            member.key: member for member in live if member.restored is not Restored.APART and member.tensor.numel()
        }
        self._bases: dict[int, Tensor] = {}  # number of a region -> new memory for it

    def strides(self, key: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the strides that a tensor had, in values."""
        return tuple(self._strides[key]) if key in self._strides else contiguous_strides(shape)

    def allocate(self, key: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
        """Return memory for a new tensor, laid out as the saved one was. Its values are undefined."""
        form = _Form(shape=shape, strides=self.strides(key, shape), dtype=dtype)
        if key in self._number:
            number = self._number[key]
            region = self._regions[number]
            if (found := self._in_live_memory(region, key, form)) is not None:
                return found
            if region[OVERLAP]:
                return self._in_new_memory(number, key, form=form, device=device)
        return _strided(form, device)

    def _in_live_memory(self, region: Json, key: str, form: _Form) -> Tensor | None:
        """Return a tensor in the region as it lies in this process already; None where it does not.

        Objects that refer to the region's memory then see the restored values.
        """
        members: Mapping[str, int] = region[MEMBERS]
        for name, offset in members.items():
            anchor = self._live.get(name)
            if anchor is not None and anchor.restored is Restored.IN_PLACE:
                is_same = _is_at(anchor.tensor, offset, region[BYTES])
                distance = members[key] - offset
                return _view_beside(anchor.tensor, distance, form, anywhere=is_same)
        live = self._live.get(key)
        if live is None or live.tensor.is_inference():
            return None
        tensor = live.tensor
        storage = tensor.untyped_storage()
        is_alike = (
            _Form(shape=tuple(tensor.shape), strides=tensor.stride(), dtype=tensor.dtype) == form
            and _is_at(tensor, members[key], region[BYTES])
            and all(self._is_beside(name, offset, storage) for name, offset in members.items())
        )
        return tensor.detach() if is_alike else None

    def _is_beside(self, key: str, offset: int, storage: torch.UntypedStorage) -> bool:
        """Whether the live tensor of a key lies in this storage, at an offset in bytes."""
        live = self._live.get(key)
        return live is not None and live.tensor.data_ptr() - storage.data_ptr() == offset

    def _in_new_memory(self, number: int, key: str, form: _Form, device: str) -> Tensor:
        """Return a tensor in new memory for a region, which all tensors of the region share."""
        region = self._regions[number]
        if number not in self._bases:
            self._bases[number] = torch.empty(region[BYTES], dtype=torch.uint8, device=device)
        return _view(self._bases[number], region[MEMBERS][key], form)

    # --- tensors that are filled where they are -----------------------------------------------------------------

    def arrange(self) -> None:
        """Give the tensors that are to be filled in place their saved strides, and tie those that were tied.

        A tensor whose memory is exchanged loses its values. What lies right already stays where it is.
        """
        if not self.is_known:
            return
        in_place = [member for member in self._live.values() if member.restored is Restored.IN_PLACE]
        saved = [region[MEMBERS] for region in self._regions if region[TIED]]
        wanted = [{key: offset for key, offset in members.items() if self._is_in_place(key)} for members in saved]
        now = [region.offsets() for region in find_regions(in_place) if region.is_tied]
        moved: set[str] = set()
        for members in now:
            if _relative(members) not in map(_relative, wanted):
                moved |= self._untie(members)
        for members in wanted:
            if _relative(members) not in map(_relative, now):
                self._tie(members)
                moved |= members.keys()
        for member in in_place:
            tensor = member.tensor
            form = self._saved_form(member.key)
            if member.key not in moved and tensor.stride() != form.strides and len(form.strides) == tensor.dim():
                tensor.data = _strided(form, str(tensor.device))

    def _is_in_place(self, key: str) -> bool:
        return key in self._live and self._live[key].restored is Restored.IN_PLACE

    def _saved_form(self, key: str) -> _Form:
        """Return the form of a live tensor, with the strides that the tensor had when it was saved."""
        tensor = self._live[key].tensor
        return _Form(shape=tuple(tensor.shape), strides=self.strides(key, tensor.shape), dtype=tensor.dtype)

    def _untie(self, members: Iterable[str]) -> set[str]:
        """Give each tensor memory of its own; return the tensors' keys."""
        for key in members:
            tensor = self._live[key].tensor
            tensor.data = _strided(self._saved_form(key), str(tensor.device))
        return set(members)

    def _tie(self, members: Mapping[str, int]) -> None:
        """Put tensors into one new piece of memory, at their offsets."""
        ends = [offset + self._saved_form(key).span for key, offset in members.items()]
        first = self._live[next(iter(members))].tensor
        base = torch.empty(max(ends), dtype=torch.uint8, device=first.device)
        for key, offset in members.items():
            self._live[key].tensor.data = _view(base, offset, self._saved_form(key))


def _relative(members: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    """Return the offsets in a region relative to its first member, so that two regions can be compared."""
    first = min(members.values(), default=0)
    return frozenset((key, offset - first) for key, offset in members.items())


def _strided(form: _Form, device: str) -> Tensor:
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=device)


def _view(base: Tensor, offset: int, form: _Form) -> Tensor:
    """Return a tensor in the memory of `base`, which is one-dimensional and of bytes, at an offset in bytes."""
    stretch = base[offset : offset + form.span].view(form.dtype)
    return stretch.as_strided(form.shape, form.strides, stretch.storage_offset())


def _is_at(tensor: Tensor, offset: int, size: int) -> bool:
    """Whether a tensor lies in a storage of `size` bytes, at an offset in bytes."""
    storage = tensor.untyped_storage()
    return storage.nbytes() == size and tensor.data_ptr() - storage.data_ptr() == offset


def _view_beside(anchor: Tensor, distance: int, form: _Form, *, anywhere: bool) -> Tensor | None:
    """Return a tensor in the storage of `anchor`, `distance` bytes from where the anchor begins.

    None where the storage does not reach that far. anywhere: the tensor may lie outside the anchor itself.
    """
    size = form.dtype.itemsize
    end = distance + form.span
    if not anywhere and not 0 <= distance < end <= extent(anchor):
        return None
    storage = anchor.untyped_storage()
    begin = anchor.data_ptr() - storage.data_ptr()
    if begin + distance < 0 or (begin + distance) % size or begin + end > storage.nbytes():
        return None
    everything = torch.empty(0, dtype=torch.uint8, device=anchor.device).set_(storage)
    return _view(everything, begin + distance, form)


def fill_overlapping(target: Tensor, values: Tensor) -> None:
    """Write values into a tensor that overlaps itself. Values for the same place must be equal."""
    size = extent(target) // target.element_size()
    stretch = target.as_strided((size,), (1,), target.storage_offset())
    places = torch.arange(size, device=target.device).as_strided(target.shape, target.stride())
    stretch[places.reshape(-1)] = values.reshape(-1)
