"""Saved tensors by key: in the snapshot slots of a node's ranks in memory, or in a checkpoint.

The classes map files and know what lies where; reading.py copies tensors out of them.

A key names a tensor, and the ranks that hold it if not all do (shared_keys.py). A chunk is an entry of a file: a whole
tensor, or the part of a tensor that one rank has saved, which begins at an offset in the whole. A piece is a chunk that
is read: the pieces of a key cover its tensor, each part once. A copy is a chunk that another rank has saved of a part
that a piece covers already; copies are only compared with the piece.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ftlaunch_contract import shared_keys
from ftlaunch_contract.checkpoint import layout, seeds, tensor_file, verify
from ftlaunch_contract.checkpoint.metadata import Trainings, trainings
from ftlaunch_contract.checkpoint.seeds import Seeds
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged
from ftlaunch_hooks.storage.saved_digests import has_same_values
from ftlaunch_hooks.tensors.dtypes import TORCH_DTYPES
from ftlaunch_hooks.tensors.mapped import MappedFile
from ftlaunch_hooks.tensors.value_samples import ValueSample


class TensorSource(Protocol):
    """Supplies the tensor of a chunk."""

    @property
    def path(self) -> Path | None:
        """The file in which the tensor's bytes lie as in memory; None where there is no such file."""

    def tensor(self, chunk: Chunk, offset: int) -> Tensor:
        """Return the tensor of a chunk whose bytes begin `offset` bytes after the beginning of the file."""


@dataclass(frozen=True)
class SavedChunk:
    """A chunk, with the file that holds the chunk."""

    chunk: Chunk
    offset: int  # of the chunk's bytes, in bytes from the beginning of the file
    file: TensorSource
    rank: int = 0  # the rank that has saved the chunk

    def tensor(self) -> Tensor:
        """Return the chunk as a tensor that shares the mapped memory."""
        return self.file.tensor(self.chunk, self.offset)


class SavedTensors:
    """Everything that the ranks of a job have saved of one step."""

    step: int
    consumed_samples: int
    world_size: int
    trainings: Trainings
    seeds: Seeds
    partial = False  # whether tensors, or parts of tensors, may be missing

    def __init__(self) -> None:
        self._pieces: dict[str, list[SavedChunk]] = {}  # by key
        self._shared: dict[str, dict[str, tuple[range, ...]]] = {}  # key without ranks -> key -> its ranks
        self._copies: dict[str, list[tuple[SavedChunk, SavedChunk]]] = {}
        """key -> pairs of a piece and its copy. Each node saves what all nodes hold, and so do ranks that disagree."""

    def _add(self, file: MappedFile, rank: int) -> None:
        """Add what a rank has saved: as pieces, or as copies of the pieces that were added before.

        Raises:
            Damaged: two chunks of a key are of tensors with another shape or dtype.
        """
        for chunk, offset in zip(file.chunks, file.offsets, strict=True):
            pieces = self._pieces.get(chunk.key)
            if pieces is None:
                pieces = self._begin(chunk.key)
            if pieces and (pieces[0].chunk.whole, pieces[0].chunk.dtype) != (chunk.whole, chunk.dtype):
                raise Damaged(f"the shards of {chunk.key} do not fit together")
            new = SavedChunk(chunk, offset, file, rank)
            before = next((piece for piece in pieces if piece.chunk.offset == chunk.offset), None)
            if before is not None:
                self._copies.setdefault(chunk.key, []).append((before, new))
                continue
            pieces.append(new)

    def _begin(self, key: str) -> list[SavedChunk]:
        """Return the empty list of a new key's pieces, and note the ranks that the key names."""
        if (shared := shared_keys.parse(key)) is not None:
            plain, ranks = shared
            self._shared.setdefault(plain, {})[key] = ranks
        return self._pieces.setdefault(key, [])

    def _check_whole(self) -> None:
        """Raise Damaged if the pieces of a key have another number of bytes than its tensor."""
        for key, pieces in self._pieces.items():
            covered = sum(piece.chunk.nbytes for piece in pieces)
            whole = tensor_file.whole_chunk(key, pieces[0].chunk.dtype, pieces[0].chunk.whole).nbytes
            if covered != whole:
                raise Damaged(f"of the tensor {key} {covered} bytes are there, not {whole}")

    def keys(self) -> Collection[str]:
        """Return the keys of all tensors, including those of other ranks (`key@r`)."""
        return self._pieces.keys()

    def __contains__(self, key: str) -> bool:
        """Whether a tensor was saved under this key."""
        return key in self._pieces

    def shared(self, key: str) -> Mapping[str, tuple[range, ...]]:
        """Return the tensors of this name that groups of ranks have shared: their keys, with the ranks of each."""
        return self._shared.get(key, {})

    def info(self, key: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return the dtype and the shape of the whole tensor. Raises KeyError if nothing was saved under `key`."""
        chunk = self._pieces[key][0].chunk
        return TORCH_DTYPES[chunk.dtype], chunk.whole

    def bytes_for(self, rank: int) -> int:
        """Return the number of bytes of all tensors except those that belong only to other ranks than `rank`."""
        own = (pieces[0].chunk for key, pieces in self._pieces.items() if not shared_keys.is_of_another(key, rank))
        return sum(tensor_file.whole_chunk(chunk.key, chunk.dtype, chunk.whole).nbytes for chunk in own)

    def pieces(self, key: str) -> list[SavedChunk]:
        """Return the pieces of a tensor, in no particular order. Raises KeyError if nothing was saved under `key`."""
        return self._pieces[key]

    def state(self, rank: int) -> dict[str, Any]:
        """Return what `rank` has saved besides tensors, or what a first rank has saved if nothing of `rank` is here."""
        raise NotImplementedError

    def has_state(self, rank: int) -> bool:
        """Return whether what `rank` has saved is here."""
        return 0 <= rank < self.world_size

    def copied(self) -> Collection[str]:
        """Return the keys that have copies."""
        return self._copies.keys()

    def has_other_values(self, key: str) -> bool:
        """Return whether a copy of a key has other values than its piece.

        If the digests in the states of the two ranks agree, nothing is read. Otherwise samples of the values are
        compared.
        """
        return any(
            not has_same_values(self.state(one.rank), self.state(copy.rank))
            and ValueSample([one.tensor()]).digest() != ValueSample([copy.tensor()]).digest()
            for one, copy in self._copies.get(key, ())
        )


class MemoryReader(SavedTensors):
    """The snapshots of one step, of all ranks of a node, in the node's memory.

    Where the job has ranks on other nodes, tensors may be missing, or parts of them: reading.py refuses to read those.
    """

    def __init__(
        self, directory: Path, step: int, world_size: int, slots: Mapping[int, int], rank: int | None = None
    ) -> None:
        """Map the snapshots.

        Args:
            directory: the memory directory.
            step: the step of the snapshots.
            world_size: the number of the job's ranks.
            slots: rank -> slot that holds `step`, for the node's ranks.
            rank: the rank that restores. Of a part that several ranks have saved, the chunk of `rank` is the piece,
                otherwise that of the lowest rank. None: always that of the lowest rank.

        Raises:
            OSError: a slot cannot be read.
            Damaged: a slot does not hold the step or is no readable snapshot, or the slots of all ranks together lack a
                part of a tensor.
        """
        super().__init__()
        self.step = step
        self.world_size = world_size
        self._common = {}
        own_first = sorted(slots, key=lambda saver: (saver != rank, saver))
        for saver in own_first:
            slot = layout.slot_dir(directory, saver, slots[saver])
            try:
                common = json.loads((slot / layout.COMMON).read_bytes())
            except ValueError as error:
                raise Damaged(f"the snapshot of rank {saver} cannot be read ({error})") from error
            if common["step"] != step:
                raise Damaged(f"the snapshot of rank {saver} is of step {common['step']}, not {step}")
            self._common[saver] = common
            for group in layout.GROUPS:
                self._add(MappedFile(layout.slot_file(slot, group)), saver)
        self.partial = len(slots) < world_size
        if not self.partial:
            self._check_whole()
        self._first = min(slots)
        self.consumed_samples = self._common[self._first]["consumed_samples"]
        self.trainings = trainings(self._common[self._first])
        self.seeds = seeds.of_snapshot(self._common[self._first])

    def state(self, rank: int) -> dict[str, Any]:
        """Return what `rank` has saved besides tensors; the node's first rank's where nothing of `rank` is here."""
        state: dict[str, Any] = self._common.get(rank, self._common[self._first])["state"]
        return state

    def has_state(self, rank: int) -> bool:
        """Return whether `rank` is one of the node's ranks."""
        return rank in self._common


class CheckpointReader(SavedTensors):
    """A committed checkpoint.

    Opening checks that every part of every tensor exists. Only `verify.verify` compares checksums.
    """

    def __init__(self, directory: Path, rank: int | None = None, node: Collection[int] = ()) -> None:
        """Open a checkpoint.

        Of a part that several ranks have saved, the piece is the chunk of the first of these:

        1. a rank that holds the same values as `rank`, by the digests that both have saved;
        2. a rank of the node of `rank`;
        3. any other rank.

        Among equals the lowest rank is first.

        Args:
            directory: `iteration_<step>`.
            rank: the rank that restores; None: the files count in the order in which the metadata lists them.
            node: the ranks of the node of `rank`.

        Raises:
            OSError: a file cannot be read.
            Damaged: a file is no readable part of a checkpoint, or a part of a tensor is missing.
        """
        super().__init__()
        metadata = verify.read_metadata(directory)
        self.step = metadata["step"]
        self.world_size = metadata["world_size"]
        try:
            self._common = json.loads((directory / layout.COMMON).read_bytes())
        except ValueError as error:
            raise Damaged(f"{layout.COMMON} cannot be read ({error})") from error
        names = [name for name in metadata["files"] if name != layout.COMMON]
        if rank is not None:
            names.sort(key=self._nearness(rank, node))
        for name in names:
            self._add(MappedFile(directory / name), layout.rank_of_shard(name))
        self._check_whole()
        self.consumed_samples = self._common["consumed_samples"]
        self.trainings = trainings(metadata)
        self.seeds = seeds.of_snapshot(self._common)

    def _nearness(self, rank: int, node: Collection[int]) -> Callable[[str], tuple[bool, bool, int]]:
        """Return the sort key of file names. The file whose chunks become pieces comes first."""
        own = self.state(rank)
        equal_ranks = {other for other in range(self.world_size) if has_same_values(own, self.state(other))}

        def key(name: str) -> tuple[bool, bool, int]:
            saver = layout.rank_of_shard(name)
            is_equal = saver in equal_ranks
            is_near = is_equal or saver in node  # among equal ranks, the node does not matter
            return not is_equal, not is_near, saver

        return key

    def state(self, rank: int) -> dict[str, Any]:
        """Return what `rank` has saved besides tensors, or what rank 0 has saved.

        A checkpoint contains the state of `rank` only if it differs from that of rank 0.
        """
        state: dict[str, Any] = self._common["ranks"].get(str(rank), self._common["state"])
        return state
