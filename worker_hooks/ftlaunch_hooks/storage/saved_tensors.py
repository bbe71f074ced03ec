"""Saved tensors by key: in the snapshot slots of a node's ranks in memory, or in a checkpoint.

The classes map files and know what lies where; reading.py copies tensors out of them.
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
        """Return the tensor of a chunk whose bytes begin at `offset` in the file."""


@dataclass(frozen=True)
class SavedChunk:
    """A chunk, with the file that holds the chunk."""

    chunk: Chunk
    offset: int  # bytes from the beginning of the file
    file: TensorSource
    rank: int = 0  # which has saved it

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
        """key -> a piece, and what another rank has saved of that part: each node does, and ranks that do not agree"""

    def _add(self, file: MappedFile, rank: int) -> None:
        """Add what a rank has saved; what was added before of the same part of a tensor counts."""
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
        if (shared := shared_keys.parse(key)) is not None:
            plain, ranks = shared
            self._shared.setdefault(plain, {})[key] = ranks
        return self._pieces.setdefault(key, [])

    def _check_whole(self) -> None:
        """Raise Damaged if a part of a tensor is missing."""
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
        """Return the dtype and the shape of the whole tensor. Raises KeyError."""
        chunk = self._pieces[key][0].chunk
        return TORCH_DTYPES[chunk.dtype], chunk.whole

    def bytes_for(self, rank: int) -> int:
        """Return the bytes of all tensors except those that belong only to other ranks than `rank`."""
        own = (pieces[0].chunk for key, pieces in self._pieces.items() if not shared_keys.is_of_another(key, rank))
        return sum(tensor_file.whole_chunk(chunk.key, chunk.dtype, chunk.whole).nbytes for chunk in own)

    def pieces(self, key: str) -> list[SavedChunk]:
        """Return the saved parts of a tensor. Raises KeyError."""
        return self._pieces[key]

    def state(self, rank: int) -> dict[str, Any]:
        """Return what `rank` has saved besides tensors; the first rank's where nothing of `rank` is here."""
        raise NotImplementedError

    def has_state(self, rank: int) -> bool:
        """Whether what `rank` has saved is here."""
        return 0 <= rank < self.world_size

    def copied(self) -> Collection[str]:
        """Keys of tensors of which several ranks have saved the same part."""
        return self._copies.keys()

    def has_other_values(self, key: str) -> bool:
        """Return whether several ranks have saved the same part of a tensor, with other values.

        Where the ranks have said the same of all that they hold nothing is read; else a sample of the values.
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
            rank: the rank that restores, whose own pieces come first.

        Raises:
            OSError: a slot cannot be read.
            Damaged: a slot does not hold the step.
        """
        super().__init__()
        self.step = step
        self.world_size = world_size
        self._common = {}
        for saver in sorted(slots, key=lambda one: (one != rank, one)):
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
        """Whether `rank` is one of the node's ranks."""
        return rank in self._common


class CheckpointReader(SavedTensors):
    """A committed checkpoint. Opening does not verify it; `verify.verify` does."""

    def __init__(self, directory: Path, rank: int | None = None, node: Collection[int] = ()) -> None:
        """Open a checkpoint.

        Of what several ranks have saved under one key each, that of the lowest rank counts which holds the same as
        `rank`, then that of its own node.

        Args:
            directory: `iteration_<step>`.
            rank: the rank that restores; None: the lowest rank's pieces count.
            node: the ranks of the node of `rank`.

        Raises:
            OSError: a file cannot be read.
            Damaged: the checkpoint is not whole.
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
        for name in names if rank is None else sorted(names, key=self._nearness(rank, node)):
            self._add(MappedFile(directory / name), layout.rank_of_shard(name))
        self._check_whole()
        self.consumed_samples = self._common["consumed_samples"]
        self.trainings = trainings(metadata)
        self.seeds = seeds.of_snapshot(self._common)

    def _nearness(self, rank: int, node: Collection[int]) -> Callable[[str], tuple[bool, bool, int]]:
        """Return what orders the files: those come first whose pieces count."""
        mine = self.state(rank)
        alike = {one for one in range(self.world_size) if has_same_values(mine, self.state(one))}

        def key(name: str) -> tuple[bool, bool, int]:
            saver = layout.rank_of_shard(name)
            return saver not in alike, saver not in alike and saver not in node, saver

        return key

    def state(self, rank: int) -> dict[str, Any]:
        """Return what `rank` has saved besides tensors; rank 0's where the two are equal or there was no such rank."""
        state: dict[str, Any] = self._common["ranks"].get(str(rank), self._common["state"])
        return state
