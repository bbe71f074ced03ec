"""A StorageReader of torch.distributed.checkpoint that reads our checkpoints and snapshots.

Whatever its planners can shard and reshard (DTensor, FSDP2, tensor parallelism, another number of ranks) works without
any resharding of our own. Values that are not tensors were saved as JSON (`json_codec.py`), not pickled. `reading.py`
uses this module for sharded tensors; scripts may use `CheckpointStorageReader` with dcp.load.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
)
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ftlaunch_contract.progress import Advance, ignore
from ftlaunch_contract.shared_keys import plain_names
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, SavedTensors
from ftlaunch_hooks.tensors.json_codec import Json, StateError, decode

VALUES = "dcp"  # entry of common.json's state that holds the values that are not tensors, by key


class ShardsStorageReader(StorageReader):
    """Supplies torch.distributed.checkpoint with what SavedTensors hold."""

    def __init__(self, shards: SavedTensors, advance: Advance = ignore) -> None:
        """Read from `shards`. advance: told the number of bytes that are read."""
        self._shards = shards
        self._advance = advance
        self._keys: dict[str, str] = {}  # another name of a tensor -> its key

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: the source was given when this object was made."""

    def _values(self) -> dict[str, Json]:
        values: dict[str, Json] = {}
        for rank in range(self._shards.world_size):
            values |= self._shards.state(rank).get(VALUES, {})
        return values

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of all tensors and values."""
        metadata = self.tensor_metadata(self._shards.keys())
        metadata.state_dict_metadata.update({key: BytesStorageMetadata() for key in self._values()})
        return metadata

    def tensor_metadata(self, keys: Iterable[str]) -> Metadata:
        """Return the metadata of these tensors only. Raises KeyError."""
        return Metadata({key: self._tensor_metadata(key) for key in keys})

    def _tensor_metadata(self, key: str) -> TensorStorageMetadata:
        dtype, whole = self._shards.info(key)
        chunks = [
            ChunkStorageMetadata(torch.Size(piece.chunk.offset), torch.Size(piece.chunk.shape))
            for piece in self._shards.pieces(key)
        ]
        return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(whole), chunks)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: reading needs no preparation."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read everything in the plan before returning; the future is done already."""
        values = self._values()
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                value = io.BytesIO()  # the planner's load_bytes takes a file of torch.save; this one is in memory
                torch.save(decode(values[item.storage_index.fqn], _no_tensor), value)
                value.seek(0)
                planner.load_bytes(item, value)
            else:
                target = planner.resolve_tensor(item).detach()
                target.copy_(self._part(item))
                planner.commit_tensor(item, target)
                self._advance(target.nbytes)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _part(self, item: ReadItem) -> Tensor:
        """Return the block of a saved chunk that a read item asks for."""
        pieces = self._shards.pieces(self._keys.get(item.storage_index.fqn, item.storage_index.fqn))
        offset = item.storage_index.offset
        piece = next(piece for piece in pieces if offset is None or piece.chunk.offset == tuple(offset))
        part = piece.tensor()
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            part = part.narrow(dim, start, length)
        return part

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether the path is a directory."""
        return Path(checkpoint_id).is_dir()


class CheckpointStorageReader(ShardsStorageReader):
    """Reads a committed checkpoint: `dcp.load(state_dict, storage_reader=CheckpointStorageReader(path))`.

    A tensor that only one group of ranks has saved (a stage of a pipeline, for example) is also found under its plain
    name. Where several groups have saved a tensor of one name, `name@0-3` is that of the ranks 0 to 3.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open the checkpoint `<checkpoint-dir>/iteration_<step>`. Raises OSError, Damaged."""
        super().__init__(CheckpointReader(Path(directory)))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Open another checkpoint, if one is given. Raises OSError, Damaged."""
        if checkpoint_id is not None:
            self._shards = CheckpointReader(Path(checkpoint_id))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of all tensors and values, plain names included."""
        metadata = super().read_metadata(*args, **kwargs)
        self._keys = plain_names(self._shards.keys())
        by_key = metadata.state_dict_metadata
        by_key.update({name: by_key[key] for name, key in self._keys.items()})
        return metadata


def read_planned(shards: SavedTensors, wanted: dict[str, Tensor], advance: Advance = ignore) -> None:
    """Fill plain tensors and DTensors from shards of any shape. Every rank reads for itself; nothing is collective."""
    reader = ShardsStorageReader(shards, advance)
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(wanted), reader.tensor_metadata(wanted), is_coordinator=True)
    [plan] = planner.create_global_plan([planner.create_local_plan()])
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _no_tensor(key: str, device: str) -> Tensor:
    raise StateError(f"cannot restore `{key}`: a tensor among values that are not tensors")
