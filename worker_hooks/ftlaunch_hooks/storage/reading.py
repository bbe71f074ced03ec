"""Reads saved tensors into tensors in memory, many at once.

A tensor costs one copy, into its place. What was saved in one piece just as this rank holds it, a whole tensor or a
shard, is read directly (parallel_read.py). What is wanted in other shards than were saved goes through
torch.distributed.checkpoint's own planner (dcp_reader.py). `Lookup` also decides which of several copies a rank reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.progress import Advance, ignore
from ftlaunch_contract.shared_keys import has_rank, own_key
from ftlaunch_hooks.devices.device_port import nearest_device
from ftlaunch_hooks.storage.own_copies import equal
from ftlaunch_hooks.storage.parallel_read import Filling, can_fill
from ftlaunch_hooks.storage.saved_tensors import SavedChunk, SavedTensors
from ftlaunch_hooks.tensors.dtypes import DTYPES, is_sharded, local_of
from ftlaunch_hooks.tensors.json_codec import StateError
from ftlaunch_hooks.tensors.memory_layout import SavedLayout, fill_overlapping, overlaps_itself


def read(saved: SavedTensors, wanted: Mapping[str, Tensor], advance: Advance = ignore) -> None:
    """Fill tensors, plain ones or DTensors, with what was saved.

    Args:
        saved: a checkpoint or a snapshot.
        wanted: key -> tensor to fill, of the shape and dtype in `saved.info`.
        advance: told the number of bytes that are read.

    Raises:
        KeyError: nothing was saved under a key.
        StateError: a part of a tensor is not here.
    """
    planned = {}
    filling = Filling(advance)
    for key, target in wanted.items():
        if saved.partial:
            _check_there(saved, key, target)
        piece = _piece_of(saved.pieces(key), target)
        held = local_of(target)
        if piece is None:
            planned[key] = target
        elif piece.file.path is not None and can_fill(held):
            filling.add(piece.file.path, piece.offset, held)
        else:
            held.copy_(piece.tensor())
            advance(held.nbytes)
    filling.run()
    if planned:
        from ftlaunch_hooks.storage import dcp_reader  # noqa: PLC0415 - half a second's import, where it is needed

        dcp_reader.read_planned(saved, planned, advance)


def _piece_of(pieces: Sequence[SavedChunk], target: Tensor) -> SavedChunk | None:
    """Return the piece that is just what this rank holds of a tensor; None if there is none."""
    part = _part_of(target)
    return next((piece for piece in pieces if (piece.chunk.offset, piece.chunk.shape) == part), None)


def _check_there(saved: SavedTensors, key: str, target: Tensor) -> None:
    """Raise StateError unless every value of the target was saved here, and not only in other nodes' memory."""
    offset, shape = _part_of(target)
    if not prod(shape):
        return
    there = sum(prod(_overlap(offset, shape, piece.chunk)) for piece in saved.pieces(key))
    if there < prod(shape):
        raise StateError(
            f"cannot restore `{key}`: of its {prod(shape)} values {there} are in what was saved here; the others are"
            " in the memory of other nodes only"
        )


def _part_of(target: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where in the whole what this rank holds of a tensor begins, and its shape."""
    if not is_sharded(target):
        return (0,) * target.dim(), tuple(target.shape)
    from ftlaunch_hooks.tensors.dtensor import offset_of  # noqa: PLC0415 - see is_sharded

    return offset_of(target), tuple(local_of(target).shape)


def _overlap(offset: Sequence[int], shape: Sequence[int], chunk: Chunk) -> list[int]:
    """Return the extents by which the part of `shape` at `offset` and a chunk overlap, in each dimension."""
    extents = []
    for dim in range(len(shape)):
        begin = max(offset[dim], chunk.offset[dim])
        end = min(offset[dim] + shape[dim], chunk.offset[dim] + chunk.shape[dim])
        extents.append(max(end - begin, 0))
    return extents


class Lookup:
    """Saved tensors as one rank sees them.

    Of tensors that every rank has saved as its own, this rank's are read. If several groups of ranks have each shared a
    tensor of one name, that of this rank's group is read.
    """

    def __init__(self, saved: SavedTensors, rank: int, world_size: int, advance: Advance = ignore) -> None:
        """Look up for one rank.

        Args:
            saved: a checkpoint or a snapshot.
            rank: the rank whose own tensors are read.
            world_size: the number of ranks of the job that reads.
            advance: told the number of bytes that are read.
        """
        self._saved = saved
        self._rank = rank
        self._advance = advance
        self._same_ranks = saved.world_size == world_size
        self.layout = SavedLayout(None, ())
        """how the tensors lay in memory when they were saved; unknown until the caller sets it"""

    def _key(self, key: str, target: Tensor | None = None) -> str:
        """Return the key under which this rank's tensor was saved, or `key` itself for none. Raises StateError."""
        found = self._find(key, target)
        if target is not None and found in self._saved.copied() and not self._is_one_piece(found, target):
            self._refuse_mosaic(key, found)
        return found

    def _is_one_piece(self, key: str, target: Tensor) -> bool:
        """Whether the target is what one rank has saved."""
        return _piece_of(self._saved.pieces(key), target) is not None

    def _refuse_mosaic(self, key: str, found: str) -> None:
        if self._saved.has_other_values(found):
            raise StateError(
                f"cannot restore `{key}`: ranks that were to hold the same of it have saved other values each, and it"
                " is wanted in other parts than they saved; start with as many ranks, and share it out as before"
            )

    def _find(self, key: str, target: Tensor | None) -> str:
        own = own_key(key, self._rank)
        shared = self._saved.shared(key)
        if own in self._saved and (self._rank or self._same_ranks or not shared):
            return own
        if self._same_ranks and (found := self._own_group(shared, target)) is not None:
            return found
        return self._any_group(key, shared) if shared else key

    def _any_group(self, key: str, shared: Collection[str]) -> str:
        """Return the key of any group's tensor, where none is this rank's. Raises StateError unless all are equal."""
        found = [*shared, *([key] if key in self._saved else [])]
        if not self._saved.partial and equal(self._saved, found):
            return found[0]
        groups = ", ".join(sorted(name[len(key) + 1 :] or "0" for name in found))
        raise StateError(
            f"cannot restore `{key}`: groups of ranks ({groups:.200}) have saved a tensor of this name each, which are "
            "not known to be the same; start with as many ranks, in the same groups"
        )

    def _own_group(self, shared: Mapping[str, tuple[range, ...]], target: Tensor | None) -> str | None:
        found = [name for name, ranks in shared.items() if has_rank(ranks, self._rank)]
        if target is not None and is_sharded(target):
            from ftlaunch_hooks.tensors.dtensor import ranks_of  # noqa: PLC0415 - see is_sharded

            wanted = sorted(ranks_of(target))
            found = [name for name in found if sorted(rank for run in shared[name] for rank in run) == wanted]
        return found[0] if len(found) == 1 else None

    def info(self, key: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return the dtype and the shape of the whole tensor."""
        return self._saved.info(self._key(key))

    def check(self, key: str, like: Tensor | None) -> None:
        """Raise StateError if the tensor was not saved, or differs from `like` in dtype or shape."""
        found = self._key(key, like)
        if found not in self._saved:
            raise StateError(f"cannot restore `{key}`: it is not in what was saved")
        dtype, shape = self._saved.info(found)
        if like is not None and (dtype, shape) != (like.dtype, tuple(like.shape)):
            raise StateError(
                f"cannot restore `{key}`: it is {_describe(like.dtype, like.shape)}, "
                f"{_describe(dtype, shape)} was saved"
            )

    def fill(self, wanted: Mapping[str, Tensor]) -> None:
        """Fill tensors with what was saved: key -> tensor."""
        with torch.no_grad():
            found = {self._key(key, tensor): tensor for key, tensor in wanted.items()}
            overlapping = {
                key: tensor
                for key, tensor in found.items()
                if not is_sharded(tensor) and overlaps_itself(tensor.shape, tensor.stride())
            }
            # Several values of such a tensor share memory, so it cannot be read into directly.
            buffers = {
                key: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu") for key, tensor in overlapping.items()
            }
            read(self._saved, {**found, **buffers}, self._advance)
            for key, tensor in overlapping.items():
                fill_overlapping(tensor, buffers[key].to(tensor.device))

    def allocate(self, key: str, device: str, like: Tensor | None = None) -> Tensor:
        """Return memory for a new tensor, laid out as the saved tensor was.

        Args:
            key: the tensor's key.
            device: a device type, which means its current device, or a type with a number. Where there is no such
                device, the current one of the type is taken, and the CPU where there is none.
            like: a parameter of the same shape. If given, the tensor lies on its device and is sharded like the
                parameter; if it is not known how the tensor lay, the parameter's memory layout is taken, too.
        """
        dtype, shape = self.info(key)
        if like is not None and (is_sharded(like) or not self.layout.is_known):
            return torch.empty_like(like.detach(), dtype=dtype)
        place = str(nearest_device(device) if like is None else like.device)
        return self.layout.allocate(key, shape=shape, dtype=dtype, device=place)

    def get(self, key: str, device: str) -> Tensor:
        """Return a new tensor with what was saved. device: as `allocate` takes it."""
        tensor = self.allocate(key, device)
        self.fill({key: tensor})
        return tensor


def _describe(dtype: torch.dtype, shape: Collection[int]) -> str:
    return f"{DTYPES.get(dtype, str(dtype))} of shape {tuple(shape)}"
